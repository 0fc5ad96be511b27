"""Metrics over seeds: does the head's mean lie where the base's seeds say it can?

The head trains k seeds, the base n. If both come from one normal distribution, the mean of k further values lies
beyond m ∓ t(n − 1, p) · s · √(1/k + 1/n) on the bad side with a probability of 1 − p (prediction interval for the mean
of k future observations: Hahn, Meeker, "Statistical Intervals", 1991, chapter 4; m and s are the base's mean and
*sample* deviation). For n = 5, k = 1 and p = 95 % that is 2.34 deviations. The 95 % are for all q metrics of a
comparison together, so that p = 1 − 5 % / q for each (Bonferroni): with 95 % each, the three metrics of `lfq` raised an
alarm on 12 % of the pairs among 40 clean sets of five seeds, with 95 % together on 4 %. Only the bad direction fails; a
jump in the good one warns, because nobody explained it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from reprokit.compare.tolerances import PAIRED
from reprokit.model.canonical import number
from reprokit.model.comparison import MetricComparison
from reprokit.model.trace import Metric

CONFIDENCE = 0.95  # that no metric of a clean comparison leaves its band
WARNING = 2.0  # deviations of the difference of the two means
_MOST_FREEDOM = 1000  # beyond it, t is the normal quantile to three digits


@dataclass(frozen=True)
class MetricDiff:
    """One metric on both sides and what it breaks.

    `faults` hold at no level; `conclusion` and `process` are what breaks those levels; `warnings` break nothing.
    """

    comparison: MetricComparison
    faults: tuple[str, ...] = ()
    conclusion: tuple[str, ...] = ()
    process: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.comparison.name

    @property
    def moved(self) -> bool:
        """Whether the two sides do not agree on it; a new one has nothing to agree with."""
        return not self.comparison.equal and self.comparison.state != "new"


def compare_metrics(base: list[Metric], head: list[Metric], same_seeds: bool) -> list[MetricDiff]:
    """Every metric, the base's first; with `same_seeds` values are also compared seed by seed."""
    measured = {metric.name: metric for metric in head}
    known = {metric.name for metric in base}
    result = [_compare(metric, measured.get(metric.name), same_seeds, len(base)) for metric in base]
    return result + [_new(metric) for metric in head if metric.name not in known]


def _compare(base: Metric, head: Metric | None, same_seeds: bool, metrics: int) -> MetricDiff:
    old = [number(value) for value in base.values]
    if head is None:
        return MetricDiff(
            _row(base, old, None, (None, None), False, "missing"),
            faults=(f"metric {base.name} is missing: the base has it and the head has not",),
        )
    new = [number(value) for value in head.values]
    mean, deviation = summary(old)
    low, high = band(mean, deviation, (len(old), len(new)), base.direction, metrics)
    if old == new and same_seeds:
        return MetricDiff(_row(base, old, new, (low, high), True, "holds"))
    if broken := _broken(base, head, old, new):
        return MetricDiff(_row(base, old, new, (low, high), False, "fails"), faults=(broken,))
    if low is None and high is None:
        if old == new:
            return MetricDiff(_row(base, old, new, (None, None), True, "holds"))
        why = f"all {len(old)} seeds agree" if len(old) > 1 else "there is one seed"
        reason = f"metric {base.name} is not calibrated, as {why} in the base: only equal values can hold"
        return MetricDiff(
            _row(base, old, new, (None, None), False, "fails"), conclusion=(reason,), process=(reason,)
        )
    return _against_band(base, old, new, (low, high), same_seeds)


def _against_band(
    base: Metric,
    old: list[float],
    new: list[float],
    limits: tuple[float | None, float | None],
    same_seeds: bool,
) -> MetricDiff:
    (low, high), (mean, deviation), found = limits, summary(old), summary(new)[0]
    outside = (low is not None and found < low) or (high is not None and found > high)
    words = f"metric {base.name} is {found:.6g}, base {mean:.6g}"
    beyond = f"at {'least' if low is not None else 'most'} {low if low is not None else high:.6g} was allowed"
    conclusion = (f"{words}: {beyond}",) if outside else ()
    scale = deviation * math.sqrt(1 / len(new) + 1 / len(old))
    warns = not outside and abs(found - mean) > WARNING * scale
    worst = max((_relative(x, y) for x, y in zip(old, new, strict=False)), default=math.inf)
    process: tuple[str, ...] = ()
    if not same_seeds:
        process = (f"metric {base.name} was measured with other seeds",)
    elif worst > PAIRED:
        process = (f"metric {base.name} moved by {worst:.2g} for one seed: {PAIRED:.2g} was allowed",)
    state = "fails" if outside else "warns" if warns else "holds"
    return MetricDiff(
        _row(base, old, new, limits, old == new, state),
        conclusion=conclusion,
        process=conclusion + process,
        warnings=(f"{words}: beyond {WARNING:g} deviations",) if warns else (),
    )


def _broken(base: Metric, head: Metric, old: list[float], new: list[float]) -> str | None:
    """What makes two sets of values incomparable, a gap in evidence that nothing can pass."""
    if not all(map(math.isfinite, new)):
        return f"metric {base.name} has a value that is not finite"
    if not all(map(math.isfinite, old)):
        return f"metric {base.name} has a value in the base that is not finite"
    if len(new) < len(old):
        return f"metric {base.name} has {len(new)} seeds, the base {len(old)}"
    if head.direction != base.direction:
        return f"metric {base.name} is better {head.direction} in the head, {base.direction} in the base"
    return None


def _new(metric: Metric) -> MetricDiff:
    row = _row(metric, None, [number(value) for value in metric.values], (None, None), False, "new")
    return MetricDiff(row, warnings=(f"metric {metric.name} is new: nothing is approved for it",))


def _row(
    metric: Metric,
    old: list[float] | None,
    new: list[float] | None,
    limits: tuple[float | None, float | None],
    equal: bool,
    state: str,
) -> MetricComparison:
    return MetricComparison(
        name=metric.name,
        direction=metric.direction,
        base=None if old is None else summary(old)[0],
        head=None if new is None else summary(new)[0],
        deviation=None if old is None else summary(old)[1],
        low=limits[0],
        high=limits[1],
        equal=equal,
        state=state,  # type: ignore[arg-type]  # one of the literals, as its callers spell it
    )


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample deviation (n − 1); the deviation of equal values is exactly 0, and 0 for one value."""
    if len(set(values)) == 1:
        return values[0], 0.0
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = sum(value / len(values) for value in values)
    return mean, math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)


def band(
    mean: float, deviation: float, counts: tuple[int, int], direction: str, metrics: int = 1
) -> tuple[float | None, float | None]:
    """Low and high end for the head's mean; the good side is open; (None, None): not calibrated.

    `counts` are the base's and the head's numbers of values, `metrics` how many metrics are judged together.
    """
    if not (math.isfinite(deviation) and deviation > 0):
        return None, None
    count, head_count = counts
    confidence = 1 - (1 - CONFIDENCE) / metrics
    reach = t_quantile(confidence, count - 1) * deviation * math.sqrt(1 / head_count + 1 / count)
    return (mean - reach, None) if direction == "higher" else (None, mean + reach)


@lru_cache(maxsize=64)
def t_quantile(probability: float, freedom: int) -> float:
    """One-sided quantile of Student's t for a probability in (0.5, 1), by bisection of its exact finite series.

    Source of the series: Abramowitz, Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    freedom = min(freedom, _MOST_FREEDOM)
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def t_probability(t: float, freedom: int) -> float:
    """P(T ≤ t) for t ≥ 0 and whole degrees of freedom from 1."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    series = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        series += term
    within = 2 / math.pi * (angle + sine * series) if odd else sine * series
    return (1 + within) / 2


def _relative(base: float, head: float) -> float:
    if base == head:
        return 0.0
    return abs(head - base) / abs(base) if base else math.inf
