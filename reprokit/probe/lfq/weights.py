"""`weights.*`: the tensors of the model as a checkpoint holds them, and as they are used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from reprokit.probe.lfq import checkpoint, model
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Stage


def weight_stages(config: model.Config, full: bool) -> Iterator[Stage]:
    """Every tensor of the model raw, as it is used after quantisation and averaged; then a checkpoint of them all."""
    raw = model.raw_weights(config)
    used = model.quantised_weights(raw)
    averaged = checkpoint.moving_average(raw)
    yield known("weights.dtypes", "data", lambda: checkpoint.dtypes(raw))
    for name in raw:
        source = (f"weights.{name}",)
        yield known(f"weights.{name}", "data", lambda name=name: raw[name])
        yield known(f"weights.{name}.quantised", "quantize", lambda name=name: used[name], source)
        yield known(f"weights.{name}.ema", "data", lambda name=name: averaged[name], source)
    if full:
        read = cache(lambda: checkpoint.written_and_read(raw))
        for section in checkpoint.SECTIONS:
            kind = ".ema" if section == "ema" else ""
            yield known(
                f"weights.checkpoint.{section}",
                "data",
                lambda section=section: checkpoint.digests(read()[section]),
                tuple(f"weights.{name}{kind}" for name in raw),
            )
