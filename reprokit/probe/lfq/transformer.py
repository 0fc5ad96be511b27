"""`embedding.*`, `layerN.*` and `logits`: the model with float32 and with quantised activations, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from reprokit.probe.lfq import data, model
from reprokit.probe.lfq.formats import E4M3, Format
from reprokit.probe.recorder import Control, Stage

ACTIVATIONS: dict[str, Format | None] = {"fp32": None, "fp8": E4M3}
REVERSED = "every reduction over the width in reversed order"
ONE_ULP = "one input moved by one ulp"


@dataclass(frozen=True)
class Step:
    """One traced step of a forward pass."""

    name: str
    operator: str
    result: torch.Tensor
    inputs: tuple[str, ...]


def layer_stages(device: torch.device, config: model.Config) -> Iterator[Stage]:
    """The steps of both forward passes in order, then `logits`, which holds the logits of both."""
    tokens = data.tokens(device)
    weights = {
        name: weight.to(device) for name, weight in model.quantised_weights(model.raw_weights(config)).items()
    }

    @cache
    def steps(variant: str, change: str | None) -> dict[str, Step]:
        return forward(
            config,
            _nudged(weights, tokens) if change == ONE_ULP else weights,
            tokens,
            variant,
            change == REVERSED,
        )

    for variant in ACTIVATIONS:
        for name, step in steps(variant, None).items():
            change = ONE_ULP if step.operator == "gather" else REVERSED
            yield Stage(
                name,
                step.operator,
                lambda step=step: step.result,
                inputs=step.inputs,
                control=Control(
                    change,
                    lambda name=name, variant=variant, change=change: steps(variant, change)[name].result,
                ),
            )
    names = tuple(f"logits.{variant}" for variant in ACTIVATIONS)

    def both(change: str | None) -> torch.Tensor:
        return torch.stack([steps(variant, change)[f"logits.{variant}"].result for variant in ACTIVATIONS])

    yield Stage(
        "logits", "gemm", lambda: both(None), inputs=names, control=Control(REVERSED, lambda: both(REVERSED))
    )


def forward(
    config: model.Config, weights: model.Weights, tokens: torch.Tensor, variant: str, reverse: bool = False
) -> dict[str, Step]:
    """Every step of one forward pass by its name, which ends with the variant: `layer0.qkv.fp32`."""
    steps: dict[str, Step] = {}

    def trace(name: str, operator: str, result: torch.Tensor, sources: tuple[str, ...]) -> None:
        full = tuple(source if source.startswith("data.") else f"{source}.{variant}" for source in sources)
        full += (f"weights.{name}.quantised",) if name in weights else ()
        steps[f"{name}.{variant}"] = Step(f"{name}.{variant}", operator, result, full)

    with torch.no_grad():
        model.Transformer(config, weights, trace, ACTIVATIONS[variant], reverse)(tokens)
    return steps


def _nudged(weights: model.Weights, tokens: torch.Tensor) -> model.Weights:
    embedding = weights["embedding"].clone()
    row = embedding[tokens[0, 0]]
    row[0] = torch.nextafter(row[0], torch.tensor(torch.inf, device=row.device))
    embedding[tokens[0, 0]] = row
    return {**weights, "embedding": embedding}
