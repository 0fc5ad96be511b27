"""Block quantisation of OCP Microscaling (MX) v1.0: low-bit elements under a shared power-of-two scale.

Every step is exact in float64 (a multiplication by a power of two, a rounding to an integer), so the codes are the
same on every correct machine. Exponents come from the bits (`frexp`), never from a logarithm, whose rounding is
wrong just below powers of two. Nothing is flushed to zero: a scale of 2^-127 is subnormal in float32 but not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from reprokit.probe.lfq.formats import SCALE_BIAS, SCALE_NAN, Format

BLOCK = 32
Rule = Literal["floor", "rceil"]


@dataclass(frozen=True)
class Quantised:
    """A tensor in blocks: `codes` uint8 (..., n), `scales` uint8 E8M0 codes (..., n / 32)."""

    codes: torch.Tensor
    scales: torch.Tensor
    format: Format

    def dequantise(self) -> torch.Tensor:
        """float32 (..., n): code times scale, exact unless it underflows; a block of scale 0xFF is NaN."""
        return dequantise(self.codes, self.scales, self.format)


def quantise(x: torch.Tensor, form: Format, rule: Rule = "floor") -> Quantised:
    """Quantise float32 (..., n) along its last dimension in blocks of 32.

    Elements are clamped to the largest finite number before rounding half to even. A block with a NaN or an
    infinity has scale 0xFF and codes 0; a block of zeros has scale 0 (2^-127) and keeps the signs of its zeros.

    Raises:
        ValueError: n is no multiple of 32.
    """
    if x.shape[-1] % BLOCK:
        raise ValueError(f"the last dimension, {x.shape[-1]}, is no multiple of the block size {BLOCK}")
    blocks = x.double().unflatten(-1, (-1, BLOCK))
    finite = blocks.isfinite().all(dim=-1)
    blocks = torch.where(finite.unsqueeze(-1), blocks, 0.0)
    exponent = scale_exponent(blocks.abs().amax(dim=-1), form, rule)
    codes = encode(blocks * power_of_two(-exponent).unsqueeze(-1), form)
    scales = torch.where(finite, exponent + SCALE_BIAS, SCALE_NAN)
    return Quantised(codes.flatten(-2), scales.to(torch.uint8), form)


def scale_exponent(largest: torch.Tensor, form: Format, rule: Rule) -> torch.Tensor:
    """int64 exponent of the scale of blocks whose largest magnitude is `largest` (float64).

    `floor` is the rule of the specification, floor(log2 largest) − greatest exponent, and may saturate; `rceil`
    is the least exponent under which nothing saturates.
    """
    exponent = floor_log2(largest) - form.greatest_exponent
    if rule == "rceil":
        exponent += (largest * power_of_two(-exponent) > form.largest).long()
    return exponent.clamp(-SCALE_BIAS, SCALE_BIAS)


def encode(x: torch.Tensor, form: Format) -> torch.Tensor:
    """uint8 codes of float64 numbers, saturating, rounded half to even; −0 keeps its sign."""
    magnitude = x.abs().clamp(max=form.largest)
    binade = floor_log2(magnitude).clamp(min=form.least_exponent)
    steps = (magnitude * power_of_two(form.mantissa_bits - binade)).round().long()
    # the codes of a binade follow those of the one below, so a rounding that carries needs no case of its own
    code = steps + ((binade - form.least_exponent) << form.mantissa_bits)
    return (code + (x.signbit().long() << (form.bits - 1))).to(torch.uint8)


def dequantise(codes: torch.Tensor, scales: torch.Tensor, form: Format) -> torch.Tensor:
    """float32 (..., n) of uint8 codes (..., n) and E8M0 scales (..., n / 32)."""
    scale = power_of_two(scales.long() - SCALE_BIAS).masked_fill(scales == SCALE_NAN, torch.nan)
    blocks = decode(codes, form).double().unflatten(-1, (-1, BLOCK)) * scale.unsqueeze(-1)
    return blocks.flatten(-2).float()


def decode(codes: torch.Tensor, form: Format) -> torch.Tensor:
    """float32 numbers that uint8 codes stand for."""
    return _table(form, codes.device)[codes.long()]


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 (..., n / 2) of 4-bit codes (..., n): the even element lies in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 4-bit codes (..., n) of packed ones (..., n / 2)."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def floor_log2(x: torch.Tensor) -> torch.Tensor:
    """int64 floor(log2 x) of float64 numbers ≥ 0, from their bits; for 0 a number below every exponent in use."""
    return (torch.frexp(x).exponent.long() - 1).masked_fill(x == 0, -1000)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """float64 2^exponent for int64 exponents of normal numbers, put together from bits."""
    return ((exponent + 1023) << 52).view(torch.float64)


@lru_cache(maxsize=16)
def _table(form: Format, device: torch.device) -> torch.Tensor:
    return torch.tensor(form.values, dtype=torch.float32, device=device)
