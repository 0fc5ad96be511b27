"""Numeric sketches: what is kept of a tensor so that two runs can be told how far they are apart.

The CountSketch (Charikar, Chen, Farach-Colton 2002) is linear: the sketch of a difference is the difference of
the sketches, and the squared norm of 64 buckets estimates the squared L2 norm without bias, with a relative
standard deviation of at most √(2/64). All sums run in one fixed order in float64 (`bincount` is a plain loop), so
that equal tensors give equal sketches on every machine.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from reprokit.probe.exact import integers
from reprokit.probe.hashing import Array, to_numpy

BUCKETS = 64
SAMPLES = 16


def sketch(array: Array) -> dict[str, Any] | None:
    """The sketch of a tensor of numbers of any shape, as a document's `sketch`; None for an empty one."""
    values = _as_float64(array)
    if values.size == 0:
        return None
    finite = np.isfinite(values)
    nan = int(np.isnan(values).sum())
    kept = values if finite.all() else np.where(finite, values, 0.0)
    bucket, sign = _hashes(values.size)
    few = values.size <= BUCKETS
    squares = np.bincount(bucket, weights=kept * kept, minlength=BUCKETS)
    return {
        "numel": values.size,
        "norm": math.sqrt(math.fsum(squares)),
        "minimum": float(values[finite].min()) if finite.any() else None,
        "maximum": float(values[finite].max()) if finite.any() else None,
        "nan": nan,
        "infinite": int(values.size - np.count_nonzero(finite)) - nan,
        "samples": (values if few else values[_positions(values.size)]).tolist(),
        "buckets": [] if few else np.bincount(bucket, weights=kept * sign, minlength=BUCKETS).tolist(),
    }


def _as_float64(array: Array) -> np.ndarray:
    if isinstance(array, torch.Tensor) and array.is_floating_point() and array.element_size() < 4:
        array = array.detach().float()
    return to_numpy(array).astype(np.float64, copy=False).reshape(-1)


@lru_cache(maxsize=64)
def _hashes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bucket (uint8 in [0, 64)) and sign (int8, ±1) of each of `count` positions."""
    if count & (count - 1):  # all counts share the table of the next power of two
        bucket, sign = _hashes(1 << count.bit_length())
        return bucket[:count], sign[:count]
    words = integers((count,), "sketch.hashes")
    sign = 1 - 2 * (words >> np.uint64(63)).astype(np.int8)
    return (words & np.uint64(BUCKETS - 1)).astype(np.uint8), sign


@lru_cache(maxsize=64)
def _positions(count: int) -> np.ndarray:
    """Fixed sample positions (ascending, distinct) in a tensor of `count` > 64 elements: one of each equal part."""
    edges = np.arange(SAMPLES + 1, dtype=np.int64) * count // SAMPLES
    offsets = (integers((SAMPLES,), "sketch.samples") % np.diff(edges).astype(np.uint64)).astype(np.int64)
    return edges[:-1] + offsets
