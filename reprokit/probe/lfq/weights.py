"""`weights.*`: the tensors of the model as a checkpoint holds them, and as they are used."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.probe.lfq import model
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Stage


def weight_stages(config: model.Config) -> Iterator[Stage]:
    """Every tensor of the model as a checkpoint would hold it, and as it is used after quantisation."""
    raw = model.raw_weights(config)
    used = model.quantised_weights(raw)
    for name in raw:
        yield known(f"weights.{name}", "data", lambda name=name: raw[name])
        yield known(
            f"weights.{name}.quantised", "quantize", lambda name=name: used[name], (f"weights.{name}",)
        )
