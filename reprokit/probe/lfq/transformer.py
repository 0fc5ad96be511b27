"""`embedding.*`, `layerN.*` and `logits`: the model in each precision and through each attention backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch

from reprokit.probe.lfq import data, model
from reprokit.probe.lfq.attention import attend, backends
from reprokit.probe.lfq.formats import E4M3, Format
from reprokit.probe.lfq.precision import tf32
from reprokit.probe.recorder import Control, Stage, Twin

REVERSED = "every reduction over the width in reversed order"
ONE_ULP = "one input moved by one ulp"


@dataclass(frozen=True)
class Variant:
    """One precision of the forward pass; `tf32` is None where it is left as it is set."""

    dtype: torch.dtype = torch.float32
    activation: Format | None = None
    tf32: bool | None = None

    def switched(self) -> AbstractContextManager[None]:
        """Its precision of float32 products in force."""
        return nullcontext() if self.tf32 is None else tf32(self.tf32)


VARIANTS = {
    "fp32": Variant(),
    "fp8": Variant(activation=E4M3),
    "bf16": Variant(torch.bfloat16),
    "fp16": Variant(torch.float16),
}
ON_GPU = {"tf32": Variant(tf32=True), "ieee": Variant(tf32=False)}


@dataclass(frozen=True)
class Step:
    """One traced step of a forward pass."""

    name: str
    operator: str
    result: torch.Tensor
    inputs: tuple[str, ...]


def layer_stages(device: torch.device, config: model.Config) -> Iterator[Stage]:
    """The steps of every variant in order, attention by its backends, then `logits`, which holds all logits."""
    tokens = data.tokens(device)
    weights = {
        name: weight.to(device) for name, weight in model.quantised_weights(model.raw_weights(config)).items()
    }
    variants = variants_of(device)

    @cache
    def steps(variant: str, change: str | None) -> dict[str, Step]:
        return forward(
            config,
            _nudged(weights, tokens, variants[variant].dtype) if change == ONE_ULP else weights,
            tokens,
            variant,
            change == REVERSED,
        )

    for variant in variants:
        for name, step in steps(variant, None).items():
            # sums of low-bit weights times 16-bit activations are exact in float32, in whatever order
            change = REVERSED if variants[variant].dtype == torch.float32 else ONE_ULP
            change = ONE_ULP if step.operator == "gather" else change
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
    yield from _backends(device, config, steps("fp32", None))

    def every(change: str | None) -> torch.Tensor:
        return torch.stack(
            [steps(variant, change)[f"logits.{variant}"].result.float() for variant in variants]
        )

    yield Stage(
        "logits",
        "gemm",
        lambda: every(None),
        version=2,
        inputs=tuple(f"logits.{variant}" for variant in variants),
        control=Control(REVERSED, lambda: every(REVERSED)),
    )


def variants_of(device: torch.device) -> dict[str, Variant]:
    """The precisions that a device computes the model in."""
    return VARIANTS | ON_GPU if device.type == "cuda" else VARIANTS


def forward(
    config: model.Config, weights: model.Weights, tokens: torch.Tensor, variant: str, reverse: bool = False
) -> dict[str, Step]:
    """Every step of one forward pass by its name, which ends with the variant: `layer0.qkv.fp32`."""
    steps: dict[str, Step] = {}
    chosen = variants_of(tokens.device)[variant]

    def trace(name: str, operator: str, result: torch.Tensor, sources: tuple[str, ...]) -> None:
        full = tuple(source if source.startswith("data.") else f"{source}.{variant}" for source in sources)
        full += (f"weights.{name}.quantised",) if name in weights else ()
        steps[f"{name}.{variant}"] = Step(f"{name}.{variant}", operator, result, full)

    cast = {name: weight.to(chosen.dtype) for name, weight in weights.items()}
    with torch.no_grad(), chosen.switched():
        model.Transformer(config, cast, trace, chosen.activation, reverse)(tokens)
    return steps


def _backends(device: torch.device, config: model.Config, steps: dict[str, Step]) -> Iterator[Stage]:
    """The attention of each layer by torch's own kernels, held against the one written out."""
    plain = model.Transformer(config, {})
    for i in range(config.layers):
        q, k, v = plain.heads(steps[f"layer{i}.qkv.fp32"].result)
        written = steps[f"layer{i}.attention.fp32"]
        for backend in backends(device, q.dtype):

            def attended(reverse: bool, backend: str = backend, q=q, k=k, v=v) -> torch.Tensor:  # type: ignore[no-untyped-def]
                x, y = (q.flip(-1), k.flip(-1)) if reverse else (q, k)
                return attend(backend, x, y, v).transpose(1, 2).flatten(-2)  # (B, T, D)

            yield Stage(
                f"layer{i}.attention.{backend}.fp32",
                "attention",
                lambda attended=attended: attended(False),
                inputs=(f"layer{i}.qkv.fp32",),
                control=Control(REVERSED, lambda attended=attended: attended(True)),
                twin=Twin(written.name, lambda written=written: written.result),
            )


def _nudged(weights: model.Weights, tokens: torch.Tensor, dtype: torch.dtype) -> model.Weights:
    embedding = weights["embedding"].to(dtype, copy=True)
    row = embedding[tokens[0, 0]]
    row[0] = torch.nextafter(row[0], torch.full_like(row[0], torch.inf))
    embedding[tokens[0, 0]] = row
    return {**weights, "embedding": embedding}
