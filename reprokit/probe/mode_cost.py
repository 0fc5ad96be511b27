"""What the switches of the mode strict cost in time: the same work with and without them, in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from reprokit import seeding
from reprokit.probe.lfq import data, kernels, model, transformer
from reprokit.probe.recorder import Unavailable

ROUNDS = 7  # a GPU's clock and a busy neighbour drift: what runs in turn shares them
Work = list[Callable[[], object]]


def measured(device: torch.device) -> dict[str, float]:
    """Median seconds of the quick kernels and one forward pass by mode: the section `mode_cost`.

    For a process in mode strict, which it leaves as it was. What cuBLAS and Python read from variables at their start
    stays in both, and operators that the mode refuses are left out of both.
    """
    work = _possible(_work(device))
    with seeding.without_switches():
        _seconds(work, device)  # kernels are loaded and, where they may be, tuned
    default, strict = [], []
    for _ in range(ROUNDS):
        with seeding.without_switches():
            default.append(_seconds(work, device))
        strict.append(_seconds(work, device))
    return {"default_seconds": statistics.median(default), "strict_seconds": statistics.median(strict)}


def _work(device: torch.device) -> Work:
    config = model.Config()
    raw = model.raw_weights(config)
    weights = {name: weight.to(device) for name, weight in model.quantised_weights(raw).items()}
    tokens = data.tokens(device)
    quick = [stage.compute for stage in kernels.kernel_stages(device, False)]
    return [*quick, lambda: transformer.forward(config, weights, tokens, "fp32")]


def _possible(work: Work) -> Work:
    """What this machine can run in mode strict."""
    possible = []
    for compute in work:
        try:
            compute()
        except (Unavailable, RuntimeError):  # the stage that was recorded of it says why
            continue
        possible.append(compute)
    return possible


def _seconds(work: Work, device: torch.device) -> float:
    _wait(device)
    begin = time.perf_counter()
    for compute in work:
        compute()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
