"""The global random generators of a process: Python's, NumPy's, torch's and, on a GPU, its own.

A part of a probe that draws more numbers from them than before leaves another state behind, which names it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed(value: int) -> None:
    """Seed all of them with `value`, below 2^32."""
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)  # that of every GPU too


def states(device: torch.device) -> torch.Tensor:
    """uint8 (generators, 32): the SHA-256 of each generator's state: Python, NumPy, torch, and the GPU's."""
    kind, keys, position, *gauss = np.random.get_state(legacy=True)
    told = [
        repr(random.getstate()).encode(),
        repr((kind, int(position), *gauss)).encode() + np.asarray(keys, dtype="<u4").tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    ]
    if device.type == "cuda":
        told.append(torch.cuda.get_rng_state(device).numpy().tobytes())
    return torch.tensor([list(hashlib.sha256(state).digest()) for state in told], dtype=torch.uint8)


@contextmanager
def kept() -> Iterator[None]:
    """Leave every generator as it was, whatever the block draws."""
    python, numpy, cpu = random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
