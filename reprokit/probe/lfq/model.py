"""A small causal transformer (pre-norm, learned positions, GELU), written to be read beside the paper.

Weights are low-bit and dequantised on use; activations have the dtype of the weights, or are quantised to E4M3
before every matrix product, the residual stream and the head excepted. B is the batch, T the length, D the width,
H the heads, S the length with what a cache holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import quantiser
from reprokit.probe.lfq.formats import E2M1, E4M3, Format


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    vocabulary: int = 256
    context: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 2
    hidden: int = 512


Weights = dict[str, torch.Tensor]
# called with the name of a step, its operator class, its result and the steps it consumes
Trace = Callable[[str, str, torch.Tensor, tuple[str, ...]], None]


def raw_weights(config: Config) -> Weights:
    """float32 weights from exact streams: bell-shaped, scaled by powers of two near 1/√(fan in)."""
    d, hidden = config.width, config.hidden
    shapes = {
        "embedding": (config.vocabulary, d),
        "position": (config.context, d),
        "head": (config.vocabulary, d),
    }
    for i in range(config.layers):
        shapes |= {
            f"layer{i}.qkv": (3 * d, d),
            f"layer{i}.attention_out": (d, d),
            f"layer{i}.mlp_in": (hidden, d),
            f"layer{i}.mlp_out": (d, hidden),
        }
    return {
        name: exact.bell(shape, f"weights.{name}") * 2.0 ** -round(math.log2(shape[1]) / 2)
        for name, shape in shapes.items()
    }


def quantised_weights(raw: Weights) -> Weights:
    """The weights as the model uses them: E2M1 codes, two in a byte, in the MLPs; E4M3 elsewhere; float32 again."""
    return {name: _through_codes(weight, E2M1 if "mlp" in name else E4M3) for name, weight in raw.items()}


def _through_codes(weight: torch.Tensor, form: Format) -> torch.Tensor:
    low_bit = quantiser.quantise(weight, form)
    codes = low_bit.codes
    if form.bits == 4:  # stored packed, as checkpoints do
        codes = quantiser.unpack_nibbles(quantiser.pack_nibbles(codes))
    return quantiser.dequantise(codes, low_bit.scales, form)


class Cache:
    """Keys and values (B, H, S, d) of the tokens so far, by layer."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def length(self) -> int:
        """Tokens so far."""
        return next((k.shape[-2] for k, _ in self._kept.values()), 0)

    def extended(self, layer: str, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer with those of further tokens (B, H, T, d) behind them."""
        if layer in self._kept:
            k, v = (torch.cat(pair, -2) for pair in zip(self._kept[layer], (k, v), strict=True))
        self._kept[layer] = k, v
        return k, v


def untraced(name: str, operator: str, result: torch.Tensor, sources: tuple[str, ...]) -> None:
    """A trace that keeps nothing."""


class Transformer:
    """The forward pass. `activation` is the format of quantised activations or None: they are not quantised.

    `reverse` runs every reduction over the width in reversed order: the same mathematics with other rounding,
    which is how a stage proves that it can move.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        trace: Trace = untraced,
        activation: Format | None = None,
        reverse: bool = False,
    ) -> None:
        self.config, self.weights, self.trace = config, weights, trace
        self.activation, self.reverse = activation, reverse

    def __call__(
        self, tokens: torch.Tensor, present: torch.Tensor | None = None, cache: Cache | None = None
    ) -> torch.Tensor:
        """Logits (B, T, vocabulary) of int64 tokens (B, T), which follow those of `cache` and are added to it.

        `present`, bool (B, S), tells real tokens from padding: positions count the real ones, and nothing but
        padding attends to padding.
        """
        w = self.weights
        past = 0 if cache is None else cache.length
        if present is None:
            positions = torch.arange(past, past + tokens.shape[1], device=tokens.device)  # (T,)
        else:
            positions = (present.long().cumsum(-1) - 1).clamp(min=0)[:, past:]  # (B, T)
        x = w["embedding"][tokens] + w["position"][positions]  # (B, T, D)
        self.trace("embedding", "gather", x, ("data.tokens",))
        residual = "embedding"
        for i in range(self.config.layers):
            x, residual = self.attention_block(x, f"layer{i}", residual, present, cache)
            x, residual = self.mlp_block(x, f"layer{i}", residual)
        x = self.norm(x, "final_norm", residual)
        logits = _matmul(x, w["head"], self.reverse)  # (B, T, vocabulary)
        self.trace("logits", "gemm", logits, ("final_norm",))
        return logits

    def attention_block(
        self,
        x: torch.Tensor,
        layer: str,
        residual: str,
        present: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[torch.Tensor, str]:
        """x + attention(norm(x)), x (B, T, D), and the name of its last step."""
        normed = self.norm(x, f"{layer}.attention_norm", residual)
        qkv = self.linear(normed, f"{layer}.qkv", f"{layer}.attention_norm")  # (B, T, 3 D)
        q, k, v = self.heads(qkv)
        if cache is not None:
            k, v = cache.extended(layer, k, v)  # (B, H, S, D / H)
        mixed = attention(q, k, v, self.reverse, present)  # (B, H, T, D / H)
        mixed = mixed.transpose(1, 2).flatten(-2)  # (B, T, D)
        self.trace(f"{layer}.attention", "attention", mixed, (f"{layer}.qkv",))
        x = x + self.linear(mixed, f"{layer}.attention_out", f"{layer}.attention")
        return x, f"{layer}.attention_out"

    def heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, (B, H, T, D / H) each, of (B, T, 3 D)."""
        q, k, v = (part.unflatten(-1, (self.config.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        return q, k, v

    def mlp_block(self, x: torch.Tensor, layer: str, residual: str) -> tuple[torch.Tensor, str]:
        """x + mlp(norm(x)), x (B, T, D), and the name of its last step."""
        normed = self.norm(x, f"{layer}.mlp_norm", residual)
        hidden = F.gelu(self.linear(normed, f"{layer}.mlp_in", f"{layer}.mlp_norm"))  # (B, T, hidden)
        self.trace(f"{layer}.gelu", "elementwise", hidden, (f"{layer}.mlp_in",))
        x = x + self.linear(hidden, f"{layer}.mlp_out", f"{layer}.gelu")
        return x, f"{layer}.mlp_out"

    def norm(self, x: torch.Tensor, name: str, source: str) -> torch.Tensor:
        """Root-mean-square norm over the width (Zhang, Sennrich 2019), without a gain."""
        y = F.rms_norm(x.flip(-1), x.shape[-1:]).flip(-1) if self.reverse else F.rms_norm(x, x.shape[-1:])
        self.trace(name, "norm", y, (source,))
        return y

    def linear(self, x: torch.Tensor, name: str, source: str) -> torch.Tensor:
        """x (B, T, K) times the transpose of the weight (N, K), with x quantised first where that is asked for."""
        if self.activation is not None:
            low_bit = quantiser.quantise(x, self.activation)
            x = low_bit.dequantise()
            self.trace(f"{name}.codes", "quantize", low_bit.codes, (source,))
            source = f"{name}.codes"
        y = _matmul(x, self.weights[name], self.reverse)
        self.trace(name, "gemm", y, (source,))
        return y


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    reverse: bool = False,
    present: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q kᵀ / √d + causal mask) v for q (B, H, T, d), k and v (B, H, S, d) (Vaswani et al. 2017).

    The queries are the last T of S tokens; `present` (B, S) tells the real ones, and padding sees itself.
    """
    if reverse:
        q, k = q.flip(-1), k.flip(-1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, T, S)
    past = k.shape[-2] - q.shape[-2]
    mask = causal_mask(k.shape[-2], q.device)[past:]  # (T, S)
    if present is not None:
        itself = torch.eye(k.shape[-2], dtype=torch.bool, device=q.device)[past:]
        mask = mask & present[:, None, None, :] | itself  # (B, 1, T, S)
    scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def causal_mask(length: int, device: torch.device) -> torch.Tensor:
    """bool (T, T): position i sees the positions up to i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _matmul(x: torch.Tensor, weight: torch.Tensor, reverse: bool) -> torch.Tensor:
    return F.linear(x.flip(-1), weight.flip(-1)) if reverse else F.linear(x, weight)
