"""Names of the GPU kernels behind each `kernel.*` stage, seen by torch's profiler.

A profiler slows down what it watches and can choose other moments for it, so that names come from a process of their
own, whose results are not recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from reprokit.probe.recorder import Stage, Unavailable

LONGEST, MOST = 300, 64  # of a name and of a stage, as the document allows
_COPIES = ("Memcpy", "Memset")  # moved by the driver, not computed by a kernel


def names(stages: Iterable[Stage]) -> dict[str, list[str]]:
    """Kernels of each stage that this machine can run and that runs any on a GPU."""
    found = {}
    for stage in stages:
        if stage.name.startswith("kernel."):
            try:
                seen = extracted(_profiled(stage))
            except Unavailable:
                continue  # the recording process states the reason
            if seen:
                found[stage.name] = seen
    return found


def extracted(events: Iterable[Any]) -> list[str]:
    """Names of the kernels among a profiler's events, sorted, each once and none longer than a document holds."""
    kernels = {
        event.name
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith(_COPIES)
    }
    return sorted({_shortened(name) for name in kernels})[:MOST]


def _profiled(stage: Stage) -> Iterable[Any]:
    """Events of the stage's second run: in the first, libraries load and what is compiled gets compiled."""
    from torch.profiler import ProfilerActivity, profile

    stage.compute()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        stage.compute()
        torch.cuda.synchronize()
    return profiler.events() or ()


def _shortened(name: str) -> str:
    """A long name, as C++ templates have, cut and told from others of the same beginning by its hash."""
    if len(name) <= LONGEST:
        return name
    mark = "…" + hashlib.sha256(name.encode()).hexdigest()[:12]
    return name[: LONGEST - len(mark)] + mark
