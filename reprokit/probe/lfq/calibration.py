"""Calibration: a scale and an offset of 4-bit codes from a set of batches, by three rules.

The same set must give the same scale and offset twice, whatever the order of its batches. By the largest magnitude
and by a percentile it does so by arithmetic; the search for the least squared error sums in float32, where another
order gives other bits, and must choose the same all the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from reprokit.probe import exact

BATCHES, ELEMENTS = 8, 512
STEPS = 15  # between the least and the greatest code
CANDIDATES = 32  # scales of the search: these parts of the whole range
PER_MILLE = 5  # of the elements that a percentile leaves out at each end

Batches = list[torch.Tensor]


def batches(device: torch.device) -> Batches:
    """Eight of float32 (512,), bell-shaped around a half, each one wider than the one before."""
    x = exact.bell((BATCHES, ELEMENTS), "quantize.calibration")
    widths = torch.arange(1, BATCHES + 1).unsqueeze(-1) / 8.0
    return list((x * widths + 0.5).to(device))


def orders(given: Batches) -> tuple[Batches, Batches]:
    """The batches as they are given and in another order."""
    return given, [
        given[index] for index in exact.permutation(len(given), "quantize.calibration.order").tolist()
    ]


def twice(rule: Callable[[Batches], torch.Tensor], given: Batches) -> torch.Tensor:
    """What a rule makes of the batches in both orders, (2, …)."""
    return torch.stack([rule(order) for order in orders(given)])


def absmax(given: Batches) -> torch.Tensor:
    """float64 (2,): scale and offset of the range to the largest magnitude on both sides, kept batch by batch."""
    largest = given[0].abs().amax()
    for batch in given[1:]:
        largest = torch.maximum(largest, batch.abs().amax())
    return _affine(-largest, largest)


def percentile(given: Batches) -> torch.Tensor:
    """float64 (2,): scale and offset of the range between two percentiles, each the element of the nearest rank."""
    ordered = torch.cat(given).sort().values
    left_out = len(ordered) * PER_MILLE // 1000
    return _affine(ordered[left_out], ordered[len(ordered) - 1 - left_out])


def squared_errors(given: Batches, reverse: bool = False) -> torch.Tensor:
    """float32 (32,): the error that each candidate leaves, squared and summed over the batches."""
    total = torch.zeros(CANDIDATES, device=given[0].device)
    scales, offsets = (part.float().unsqueeze(-1) for part in candidates(given).unbind(-1))  # (32, 1)
    for batch in given:
        codes = ((batch - offsets) / scales).round().clamp(0, STEPS)
        squares = (codes * scales + offsets - batch).square()  # (32, 512)
        total = total + (squares.flip(-1) if reverse else squares).sum(-1)
    return total


def least_squares(given: Batches) -> torch.Tensor:
    """float64 (3,): number, scale and offset of the candidate with the least error, the first one among equals."""
    chosen = squared_errors(given).argmin()
    return torch.cat((chosen.double().unsqueeze(0), candidates(given)[chosen]))


def candidates(given: Batches) -> torch.Tensor:
    """float64 (32, 2): scale and offset of 1/32, 2/32, … of the range from the least element to the greatest."""
    low = torch.stack([batch.amin() for batch in given]).amin().double()
    high = torch.stack([batch.amax() for batch in given]).amax().double()
    parts = torch.arange(1, CANDIDATES + 1, device=low.device).double() / CANDIDATES
    return _affine(low * parts, high * parts)


def disagreement(result: torch.Tensor) -> float:
    """A bound: 0 where both orders gave the same, infinite where not."""
    return 0.0 if bool((result[0] == result[1]).all()) else float("inf")


def _affine(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """float64 (…, 2): the scale that divides a range into 15 steps, and the offset at which it begins."""
    extent = high.double() - low.double()
    # a divisor on the device: by a number of the host a GPU multiplies with its reciprocal, which rounds twice
    return torch.stack((extent / torch.full_like(extent, STEPS), low.double()), -1)
