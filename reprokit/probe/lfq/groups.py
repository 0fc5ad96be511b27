"""Integer quantisation in groups: INT8 and INT4 codes under one scale each, symmetric or with a zero point.

Scales are stored in float32 and the codes are taken with the stored ones. Everything else is float64, in which a
code times a scale is exact. Every step is an IEEE operation that rounds once, so the codes are the same bytes on
every correct machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from reprokit.probe.lfq import quantiser


@dataclass(frozen=True)
class Grouped:
    """A tensor in groups: `codes` uint8 (..., n), `scales` float32 (..., n / group).

    INT4 keeps its codes in nibbles, (..., n / 2). `zeros`, uint8 of the scales' shape, holds the code of 0; without
    them it is symmetric and the codes are two's complement.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int

    def dequantise(self) -> torch.Tensor:
        """float32 (..., n): (code − zero point) × scale, rounded once."""
        codes = self.codes if self.bits == 8 else quantiser.unpack_nibbles(self.codes)
        steps = codes.long().unflatten(-1, (self.scales.shape[-1], -1))
        if self.zeros is None:
            steps = steps - ((steps >> (self.bits - 1)) << self.bits)  # the sign
        else:
            steps = steps - self.zeros.long().unsqueeze(-1)
        return (steps * self.scales.double().unsqueeze(-1)).float().flatten(-2)


def symmetric(x: torch.Tensor, bits: int, group: int) -> Grouped:
    """float32 (..., n) by the largest magnitude of each group; codes from −2^(bits−1) to 2^(bits−1) − 1."""
    groups = x.double().unflatten(-1, (-1, group))
    greatest = (1 << (bits - 1)) - 1
    scales = _scales(groups.abs().amax(-1), greatest)
    codes = _steps(groups, scales).clamp(-greatest - 1, greatest)
    return Grouped(_stored(codes, bits), scales, None, bits)


def asymmetric(x: torch.Tensor, bits: int, group: int) -> Grouped:
    """float32 (..., n) by the range of each group and 0, which has a code of its own: the zero point."""
    groups = x.double().unflatten(-1, (-1, group))
    greatest = (1 << bits) - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = _scales(high - low, greatest)
    zeros = _steps(-low.unsqueeze(-1), scales).clamp(0, greatest)  # (..., groups, 1)
    codes = (_steps(groups, scales) + zeros).clamp(0, greatest)
    return Grouped(_stored(codes, bits), scales, zeros.squeeze(-1).to(torch.uint8), bits)


def _scales(extent: torch.Tensor, steps: int) -> torch.Tensor:
    """float32: an extent divided into steps; 1 where there is none."""
    # a divisor on the device: by a number of the host a GPU multiplies with its reciprocal, which rounds twice
    scales = (extent / torch.full_like(extent, steps)).float()
    return scales.masked_fill(scales == 0, 1.0)


def _steps(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """int64 of float64 groups (..., groups, group) in steps of their scales, rounded half to even."""
    return (groups / scales.double().unsqueeze(-1)).round().long()


def _stored(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 of int64 codes (..., groups, group), the low bits of each; two of four bits in a byte."""
    low = (codes & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)
    return low if bits == 8 else quantiser.pack_nibbles(low)
