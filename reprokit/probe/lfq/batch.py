"""`batch.*`: does a sample's result depend on what is computed beside it?

The same sample alone, at every position of batches of several sizes, padded on either side, token by token through
a cache of keys and values, and after a prefill that is split. Each stage holds what the sample got and is held
against the sample alone: together they are the invariance map, operator × condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import attention, data, model
from reprokit.probe.recorder import Control, Stage, Twin

ALONE = "alone"
SIZES = (2, 7, 8, 16)
PADDING = 16
LONG = 512
SPLITS = (1, 511)
REVERSED = "the reduction in reversed order"
ONE_ULP = "one weight moved by one ulp"

Inputs = tuple[torch.Tensor, ...]
Condition = Callable[["_Model"], torch.Tensor]


@dataclass(frozen=True)
class Operator:
    """An operator by itself: `inputs` are a batch's (B, …), `compute` gives (B, …) of them."""

    kind: str
    inputs: Inputs
    compute: Callable[..., torch.Tensor]
    reverse: Callable[..., torch.Tensor]


def batch_stages(device: torch.device, config: model.Config) -> Iterator[Stage]:
    """Operators by themselves, then the whole model, each under every condition that can touch it."""
    weights = {
        name: weight.to(device) for name, weight in model.quantised_weights(model.raw_weights(config)).items()
    }
    with torch.no_grad():
        for name, operator in _operators(device, config, weights).items():
            yield from _operator_stages(name, operator)
    for dtype in (torch.float32, torch.bfloat16):
        yield from _model_stages(config, weights, _tokens(device), dtype)
    yield from _split_stages(device, config)


def _tokens(device: torch.device) -> torch.Tensor:
    """int64 (16, 64): the sample, which is the first sequence of the data, and what stands beside it."""
    others = exact.below(256, (max(SIZES) - 1, data.LENGTH), "batch.tokens").to(device)
    return torch.cat((data.tokens(device)[:1], others))


def _operators(device: torch.device, config: model.Config, weights: model.Weights) -> dict[str, Operator]:
    """Each on full mantissas, the sample first among 16."""
    rows, width = max(SIZES), config.width
    x = exact.bell((rows, data.LENGTH, width), "batch.x").to(device)
    scores = exact.bell((rows, config.heads, data.LENGTH, data.LENGTH), "batch.scores").to(device)
    q, k, v = (
        exact.bell((rows, config.heads, data.LENGTH, 32), f"batch.{part}").to(device) for part in "qkv"
    )
    row = exact.bell((rows, 1, 1000), "batch.row").to(device)
    wide = exact.bell((384, 1000), "batch.wide").to(device)
    weight = weights["layer0.qkv"]
    return {
        "linear": Operator(
            "gemm", (x,), lambda x: F.linear(x, weight), lambda x: F.linear(x.flip(-1), weight.flip(-1))
        ),
        # one row a sample, as in decoding, so that the size of the batch is that of the product
        "linear_row": Operator(
            "gemm", (row,), lambda x: F.linear(x, wide), lambda x: F.linear(x.flip(-1), wide.flip(-1))
        ),
        "norm": Operator(
            "norm",
            (x,),
            lambda x: F.rms_norm(x, x.shape[-1:]),
            lambda x: F.rms_norm(x.flip(-1), x.shape[-1:]).flip(-1),
        ),
        "softmax": Operator(
            "softmax",
            (scores,),
            lambda s: torch.softmax(s, -1),
            lambda s: torch.softmax(s.flip(-1), -1).flip(-1),
        ),
        "attention": Operator(
            "attention",
            (q, k, v),
            lambda q, k, v: attention.attend(attention.DEFAULT, q, k, v),
            lambda q, k, v: attention.attend(attention.DEFAULT, q.flip(-1), k.flip(-1), v),
        ),
    }


def _operator_stages(name: str, operator: Operator) -> Iterator[Stage]:
    sample = tuple(part[:1] for part in operator.inputs)

    @cache
    def alone() -> torch.Tensor:
        return operator.compute(*sample)

    def everywhere(size: int) -> torch.Tensor:
        """The sample's result at each of `size` positions, (size, …)."""
        return torch.cat(
            [operator.compute(*_placed(operator.inputs, size, at))[at : at + 1] for at in range(size)]
        )

    control = Control(REVERSED, lambda: operator.reverse(*sample))
    reference = f"batch.{name}.{ALONE}.fp32"
    yield Stage(reference, operator.kind, alone, control=control)
    for size in SIZES:
        yield Stage(
            f"batch.{name}.of_{size}.fp32",
            operator.kind,
            lambda size=size: everywhere(size),
            control=Control(
                REVERSED, lambda size=size: operator.reverse(*sample).expand(size, *alone().shape[1:])
            ),
            twin=Twin(reference, alone),
        )


def _placed(inputs: Inputs, size: int, at: int) -> Inputs:
    """A batch of `size` with the sample at position `at`."""
    order = [*range(1, at + 1), 0, *range(at + 1, size)]
    return tuple(part[order] for part in inputs)


class _Model:
    """The model's logits (64, vocabulary) of the sample under each condition."""

    def __init__(
        self, config: model.Config, weights: model.Weights, tokens: torch.Tensor, reverse: bool = False
    ) -> None:
        self._forward = model.Transformer(config, weights, reverse=reverse)
        self._tokens = tokens

    def alone(self) -> torch.Tensor:
        return self._logits(self._tokens[:1])[0]

    def everywhere(self, size: int) -> torch.Tensor:
        """(size, 64, vocabulary): at each position of a batch."""
        return torch.stack([self._logits(*_placed((self._tokens,), size, at))[at] for at in range(size)])

    def padded(self, left: bool) -> torch.Tensor:
        """Beside a longer sequence, so that it is padded, on the left or on the right."""
        padding = torch.zeros(1, PADDING, dtype=torch.int64, device=self._tokens.device)
        sample = self._tokens[:1]
        tokens = torch.cat((padding, sample) if left else (sample, padding), dim=1)
        present = torch.ones_like(tokens, dtype=torch.bool)
        real = slice(PADDING, None) if left else slice(None, -PADDING)
        present[:, slice(None, PADDING) if left else slice(-PADDING, None)] = False
        return self._logits(tokens, present)[0, real]

    def cached(self) -> torch.Tensor:
        """Token by token, the keys and values of the earlier ones kept."""
        kept = model.Cache()
        return torch.cat([self._logits(one, cache=kept)[0] for one in self._tokens[:1].split(1, dim=1)])

    def split(self, at: int) -> torch.Tensor:
        """Prefilled in two parts, the first of `at` tokens."""
        kept = model.Cache()
        parts = self._tokens[:1, :at], self._tokens[:1, at:]
        return torch.cat([self._logits(part, cache=kept)[0] for part in parts])

    def _logits(self, *arguments: torch.Tensor | None, cache: model.Cache | None = None) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(*arguments, cache=cache)


def _model_stages(
    config: model.Config, weights: model.Weights, tokens: torch.Tensor, dtype: torch.dtype
) -> Iterator[Stage]:
    short = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    cast = {name: weight.to(dtype) for name, weight in weights.items()}
    straight, changed, change = _Model(config, cast, tokens), _Model(config, cast, tokens, True), REVERSED
    if (
        dtype != torch.float32
    ):  # sums of low-bit weights times 16-bit activations are exact, in whatever order
        changed, change = _Model(config, _nudged(cast), tokens), ONE_ULP
    sizes = SIZES if dtype == torch.float32 else SIZES[2:3]
    conditions: dict[str, Condition] = {
        **{f"of_{size}": lambda one, size=size: one.everywhere(size) for size in sizes},
        "padded_left": lambda one: one.padded(left=True),
        "padded_right": lambda one: one.padded(left=False),
        "cached": lambda one: one.cached(),
        "warm": lambda one: one.alone(),
    }
    yield from _held(f"batch.logits.{{}}.{short}", straight, changed, change, conditions)


def _split_stages(device: torch.device, config: model.Config) -> Iterator[Stage]:
    """The prefill of a long sequence by one layer, in one part and in two."""
    config = replace(config, context=LONG, layers=1)
    weights = {
        name: weight.to(device) for name, weight in model.quantised_weights(model.raw_weights(config)).items()
    }
    tokens = exact.below(256, (1, LONG), "batch.long").to(device)
    straight, changed = _Model(config, weights, tokens), _Model(config, weights, tokens, True)
    conditions: dict[str, Condition] = {f"split_at_{at}": lambda one, at=at: one.split(at) for at in SPLITS}
    yield from _held("batch.prefill.{}.fp32", straight, changed, REVERSED, conditions)


def _nudged(weights: model.Weights) -> model.Weights:
    head = weights["head"].clone()
    head[0, 0] = torch.nextafter(head[0, 0], torch.full_like(head[0, 0], torch.inf))
    return {**weights, "head": head}


def _held(
    name: str,
    straight: _Model,
    changed: _Model,
    change: str,
    conditions: dict[str, Condition],
) -> Iterator[Stage]:
    """The sample alone, then under each condition; `name` has a place for the condition."""
    alone, moved = cache(straight.alone), cache(changed.alone)

    def controlled(under: Condition, condition: str) -> torch.Tensor:
        """Under the same condition; for a whole batch, once for every position."""
        if condition.startswith("of_"):
            return moved().expand(int(condition.removeprefix("of_")), -1, -1)
        return under(changed)

    yield Stage(name.format(ALONE), "metric", alone, control=Control(change, moved))
    for condition, under in conditions.items():
        yield Stage(
            name.format(condition),
            "metric",
            partial(under, straight),
            control=Control(change, partial(controlled, under, condition)),
            twin=Twin(name.format(ALONE), alone),
        )
