"""The parts of the probe in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from reprokit.probe.lfq import inputs, invariants, kernels, metrics, model, transformer
from reprokit.probe.recorder import Stage

Part = Callable[[], Iterator[Stage]]


def parts(device: torch.device, profile: str, seed: int) -> dict[str, Part]:
    """Name and stages of each part; a part is called once for every repeat, so that each one computes anew."""
    config = model.Config()
    return {
        "invariant": lambda: invariants.invariant_stages(device),
        "rng": lambda: inputs.rng_stages(device, seed),
        "data": inputs.data_stages,
        "weights": lambda: inputs.weight_stages(config),
        "quantize": lambda: invariants.quantize_stages(device),
        "layers": lambda: transformer.layer_stages(device, config),
        "kernel": lambda: kernels.kernel_stages(device, full=profile == "full"),
        "metrics": lambda: metrics.metric_stages(device, seed),
    }
