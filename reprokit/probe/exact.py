"""Exact inputs: counter-based integers turned into floats by exact arithmetic.

Element `i` of a stream is SplitMix64 (Steele, Lea, Flood 2014) of `key + i`, where the key is the head of the
SHA-256 of the stream's name. Integers below 2^24 are exact in float32 and so is their product with a power of
two: the inputs are the same bytes on every machine, whatever its libraries, and no `randn` is involved.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np
import torch

_GOLDEN = 0x9E3779B97F4A7C15


# Streams are made once a process and shared by its repeats: whoever changes a tensor in place clones it first.
_shared = lru_cache(maxsize=512)


def integers(shape: tuple[int, ...], stream: str) -> np.ndarray:
    """uint64 integers of `shape`, uniform over all 64 bits."""
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little")
    state = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(key)
    state *= np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state.reshape(shape)


@_shared
def below(limit: int, shape: tuple[int, ...], stream: str) -> torch.Tensor:
    """int64 integers of `shape` in [0, limit)."""
    return torch.from_numpy((integers(shape, stream) % np.uint64(limit)).astype(np.int64))


@_shared
def uniform(shape: tuple[int, ...], stream: str) -> torch.Tensor:
    """float32 of `shape` in [-1, 1), on a grid of 2^-23: every mantissa bit is in use."""
    steps = (integers(shape, stream) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return _scaled(steps, -23)


@_shared
def bell(shape: tuple[int, ...], stream: str) -> torch.Tensor:
    """float32 of `shape`, the sum of four uniforms: in [-4, 4), standard deviation 2/√3, on a grid of 2^-21."""
    words = integers((*shape, 2), stream)
    low, high, mask = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32), np.uint64((1 << 22) - 1)
    pairs = ((low & mask) + (high & mask)).astype(np.int64)
    steps = pairs[..., 0] + pairs[..., 1] - (1 << 23)
    return _scaled(steps, -21)


@_shared
def permutation(count: int, stream: str) -> torch.Tensor:
    """int64 permutation of `count` elements: the stable order of a stream of integers."""
    return torch.from_numpy(np.argsort(integers((count,), stream), kind="stable").astype(np.int64))


def _scaled(steps: np.ndarray, exponent: int) -> torch.Tensor:
    # a tensor of torch's own, whose alignment does not vary with NumPy's allocator
    return torch.from_numpy(steps.astype(np.float32) * np.float32(2.0**exponent)).clone()
