"""The precision in which a GPU computes float32 products: TF32, which keeps 10 bits of the mantissa, or all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """TF32 in matrix products and convolutions on or off for the block; a CPU takes no notice."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    # the new settings, where torch has them: reading the old ones raises where both were used
    new = all(hasattr(backend, "fp32_precision") for backend in backends)
    settings = [(backend, "fp32_precision") for backend in backends]
    if not new:
        settings = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    before = [getattr(owner, name) for owner, name in settings]
    try:
        for owner, name in settings:
            setattr(owner, name, ("tf32" if enabled else "ieee") if new else enabled)
        yield
    finally:
        for (owner, name), value in zip(settings, before, strict=True):
            setattr(owner, name, value)
