"""How far two tensors are apart, estimated from the sketches that two fingerprints keep of them.

The CountSketch (Charikar, Chen, Farach-Colton 2002; as a norm estimator it is the AMS sketch of Alon, Matias,
Szegedy 1996 with one bucket per row) is linear: the sketch of a difference is the difference of the sketches.
The squared norm of its k buckets estimates the squared L2 norm without bias and with a relative variance of at
most 2 / k. For a small relative error e of the square, the root's is e / 2; hence a relative standard error of the
norm of √(2 / k) / 2, which is 0.088 for k = 64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reprokit.model.canonical import number
from reprokit.model.trace import Number, Sketch, Stage

BUCKETS = 64
UNCERTAINTY = math.sqrt(2 / BUCKETS) / 2


@dataclass(frozen=True)
class Distance:
    """Distance of one stage between the two sides; infinite where the two cannot be compared.

    `relative` is the L2 norm of the difference over the base's norm, `uncertainty` its relative standard error
    (0: exact), `largest` the largest absolute difference among the samples. `share` is the share of quantised
    codes that flipped and `flipped` their number, None where nothing is quantised; where the two cannot be compared,
    the share is infinite and all codes count.
    """

    relative: float
    uncertainty: float
    largest: float
    flipped: float | None
    share: float | None


def holds_codes(stage: Stage) -> bool:
    """Whether a stage's result is integer codes of a quantiser."""
    return (
        stage.operator == "quantize" and stage.dtype is not None and stage.dtype.startswith(("uint", "int"))
    )


def non_finite(sketch: Sketch | None) -> tuple[int, int]:
    """How many elements are NaN and how many infinite; without a sketch, none is known."""
    return (0, 0) if sketch is None else (sketch.nan, sketch.infinite)


def distance(base: Stage, head: Stage) -> Distance | None:
    """Distance of a stage's two results; None where one side keeps no sketch.

    Nothing bounds a sketch from a foreign fingerprint, so what does not fit together counts as infinitely far.
    The estimate is never below what is known for certain: the norms differ by no more than the norm of the
    difference, and so do the samples.
    """
    if base.sketch is None or head.sketch is None:
        return None
    codes = holds_codes(base)
    if not _comparable(base, head):
        return _infinite(base.sketch, codes)
    samples = _differences(base.sketch.samples, head.sketch.samples)
    if base.sketch.buckets:
        estimate = math.hypot(*(y - x for x, y in zip(base.sketch.buckets, head.sketch.buckets, strict=True)))
        apart = abs(number(head.sketch.norm) - number(base.sketch.norm))
        norm, uncertainty = max(_finite(estimate), apart, math.hypot(*samples)), UNCERTAINTY
        # a flip moves a code to its neighbour, by one; a sign or a whole scale that flips counts as more
        flips = round(min(norm, math.sqrt(base.sketch.numel)) ** 2) if codes else 0
    else:
        norm, uncertainty = math.hypot(*samples), 0.0
        flips = sum(difference != 0 for difference in samples)
    if norm == math.inf:
        return _infinite(base.sketch, codes)
    relative = _over(norm, number(base.sketch.norm))
    return Distance(
        relative=relative,
        uncertainty=uncertainty if math.isfinite(relative) else 0.0,
        largest=max(samples, default=0.0),
        flipped=float(flips) if codes else None,
        share=flips / max(base.sketch.numel, 1) if codes else None,
    )


def _infinite(base: Sketch, codes: bool) -> Distance:
    flipped, share = (float(base.numel), math.inf) if codes else (None, None)
    return Distance(relative=math.inf, uncertainty=0.0, largest=math.inf, flipped=flipped, share=share)


def _comparable(base: Stage, head: Stage) -> bool:
    x, y = base.sketch, head.sketch
    assert x is not None
    assert y is not None
    return (
        (base.dtype, base.shape, x.numel, len(x.samples)) == (head.dtype, head.shape, y.numel, len(y.samples))
        and non_finite(x) == non_finite(y)
        and all(math.isfinite(number(sketch.norm)) and number(sketch.norm) >= 0 for sketch in (x, y))
        and len(x.buckets) == len(y.buckets) == (BUCKETS if x.numel > BUCKETS else 0)
        and (x.numel > BUCKETS or len(x.samples) == x.numel)
    )


def _differences(base: list[Number], head: list[Number]) -> list[float]:
    """Absolute differences of samples; a NaN or infinity that changed is infinitely far from what it was."""
    pairs = [(number(x), number(y)) for x, y in zip(base, head, strict=True)]
    return [0.0 if x == y or (x != x and y != y) else _finite(abs(y - x)) for x, y in pairs]


def _finite(difference: float) -> float:
    return math.inf if difference != difference else difference


def _over(difference: float, norm: float) -> float:
    if difference == 0:
        return 0.0
    return difference / norm if norm > 0 else math.inf
