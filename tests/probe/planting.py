"""Which stages of a part a planted fault moves."""

from __future__ import annotations

from functools import cache

import torch

from reprokit.probe.lfq.parts import parts
from reprokit.probe.recorder import hashes


def measured(part: str, seed: int = 0) -> dict[str, str]:
    """Name and hash of each stage of a part, as this process computes it now."""
    return hashes(parts(torch.device("cpu"), "full", seed)[part]())


honest = cache(measured)


def moved(part: str) -> list[str]:
    """The stages, in their order, that differ from the honest run, which is made before anything is planted."""
    now = measured(part)
    assert list(now) == list(honest(part))
    return [name for name in now if now[name] != honest(part)[name]]
