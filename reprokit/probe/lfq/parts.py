"""The parts of the probe in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import torch

from reprokit.probe import generators
from reprokit.probe.lfq import (
    batch,
    collective,
    data,
    invariants,
    kernels,
    metrics,
    model,
    quantize,
    rng,
    sampling,
    training,
    transformer,
    weights,
)
from reprokit.probe.recorder import Stage

Part = Callable[[], Iterator[Stage]]


def parts(
    device: torch.device, profile: str, seed: int, ranks: collective.Ranks | None = None
) -> dict[str, Part]:
    """Name and stages of each part; a part is called once for every repeat, so that each one computes anew.

    The part `collective` takes `ranks`, which compute one turn for each of its calls.
    """
    _settle()
    config = model.Config()
    full = profile == "full"
    found: dict[str, Part] = {
        "invariant": lambda: invariants.invariant_stages(device, full),
        "rng": lambda: rng.rng_stages(device, seed, full),
        "data": lambda: data.data_stages(full),
        "weights": lambda: weights.weight_stages(config, full),
        "quantize": lambda: quantize.quantize_stages(device, full),
        "layers": lambda: transformer.layer_stages(device, config),
        "kernel": lambda: kernels.kernel_stages(device, full),
    }
    if full:
        found |= {
            "batch": lambda: batch.batch_stages(device, config),
            "sampling": lambda: sampling.sampling_stages(device, seed),
            "training": lambda: training.training_stages(device, seed),
        }
    if ranks is not None:
        turns = count()
        found["collective"] = lambda: collective.collective_stages(ranks, next(turns))
    found["metrics"] = lambda: metrics.metric_stages(device, seed)
    return {name: _accounted(name, part, device, seed) for name, part in found.items()}


def _accounted(name: str, part: Part, device: torch.device, seed: int) -> Part:
    """The part behind freshly seeded global generators, and at its end a stage of what it left of them."""

    def stages() -> Iterator[Stage]:
        generators.seed(seed)
        yield from part()
        yield rng.left_stage(name, device)

    return stages


def _settle() -> None:
    """Let MKL's vector maths choose its kernels before several threads ask for them at once.

    It chooses at its first call in a process. When two threads make that call together, one of them sometimes
    computes with a kernel of half the digits: in 8 of 2,200 processes here, off by 4e-5, against none of 5,700
    after a first call in one thread. That is a race at start-up, not a property of the machine to be compared.
    """
    torch.exp(torch.ones(1))
