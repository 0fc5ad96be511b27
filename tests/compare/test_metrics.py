"""Metrics against the band of the base's seeds."""

from __future__ import annotations

import math
import statistics

import msgspec
import pytest

from reprokit.compare.metrics import MetricDiff, band, compare_metrics, summary, t_quantile
from reprokit.model.trace import Metric
from tests.compare import builders

BASE = [0.95, 0.96, 0.94, 0.955, 0.945]


def made(numbers: list[float | str], **fields: str) -> Metric:
    return msgspec.convert(builders.metric(numbers=numbers) | fields, Metric)  # type: ignore[arg-type]


def held(base: list[float | str], head: list[float | str], same_seeds: bool = True) -> MetricDiff:
    return compare_metrics([made(base)], [made(head)], same_seeds)[0]


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    # tables of Student's t, e.g. Abramowitz, Stegun, table 26.10
    [
        (0.95, 1, 6.314),
        (0.95, 2, 2.920),
        (0.95, 3, 2.353),
        (0.95, 4, 2.132),
        (0.95, 5, 2.015),
        (0.95, 9, 1.833),
        (0.95, 10, 1.812),
        (0.95, 30, 1.697),
        (0.975, 1, 12.706),
        (0.975, 4, 2.776),
        (0.975, 30, 2.042),
        (0.95, 10**6, 1.646),
    ],
)
def test_quantiles_of_t(probability: float, freedom: int, quantile: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(quantile, abs=6e-4)


def test_band_of_one_further_value_is_2_34_deviations() -> None:
    low, high = band(0.0, 1.0, (5, 1), "higher")
    assert low == pytest.approx(-2.335, abs=1e-3)
    assert high is None
    assert band(0.0, 1.0, (5, 5), "lower") == (None, pytest.approx(2.1318 * math.sqrt(2 / 5), abs=1e-3))


def test_several_metrics_share_one_risk() -> None:
    low, _ = band(0.0, 1.0, (5, 1), "higher", metrics=2)
    assert low == pytest.approx(-2.776 * math.sqrt(6 / 5), abs=1e-3)  # t(4, 97.5 %)


def test_summary_is_the_sample_deviation() -> None:
    mean, deviation = summary(BASE)
    assert mean == pytest.approx(statistics.mean(BASE))
    assert deviation == pytest.approx(statistics.stdev(BASE))
    assert summary([0.1] * 3) == (0.1, 0.0)


def test_equal_values_hold_and_are_equal() -> None:
    found = held(list(BASE), list(BASE))
    assert found.comparison.equal
    assert found.comparison.state == "holds"
    assert not (found.faults or found.process or found.conclusion or found.warnings)


def test_document_cannot_choose_its_own_mean() -> None:
    forged = compare_metrics([made(list(BASE))], [made([0.1] * 5) for _ in range(1)], True)[0]
    assert forged.comparison.head == 0.1
    assert forged.comparison.state == "fails"


@pytest.mark.parametrize(
    ("shift", "state"),
    [(-0.011, "fails"), (-0.0104, "warns"), (-0.005, "holds"), (0.005, "holds"), (0.02, "warns")],
)
def test_only_the_bad_direction_fails(shift: float, state: str) -> None:
    found = held(list(BASE), [value + shift for value in BASE], same_seeds=False)
    assert found.comparison.state == state
    assert bool(found.conclusion) == (state == "fails")
    assert bool(found.warnings) == (state == "warns")


def test_lower_is_better_turns_the_band_around() -> None:
    worse = compare_metrics(
        [made(list(BASE), direction="lower")], [made([v + 0.02 for v in BASE], direction="lower")], True
    )[0]
    assert worse.comparison.state == "fails"
    assert worse.comparison.low is None
    assert worse.comparison.high is not None


@pytest.mark.parametrize("constant", [[0.5] * 5, [0.5]])
def test_without_deviation_only_equal_values_hold_and_it_is_said(constant: list[float | str]) -> None:
    found = held(constant, [0.5000001] * len(constant))
    assert found.comparison.state == "fails"
    assert "not calibrated" in found.process[0]
    assert "not calibrated" in found.conclusion[0]
    assert held(constant, list(constant)).comparison.state == "holds"
    assert held(constant, list(constant), same_seeds=False).comparison.state == "holds"


def test_one_seed_that_jumps_breaks_process_and_not_conclusion() -> None:
    found = held(list(BASE), [0.94, 0.97, 0.94, 0.955, 0.945])
    assert found.process
    assert not found.conclusion


def test_small_paired_shift_keeps_process() -> None:
    assert not held(list(BASE), [value - 1 / 360 for value in BASE]).process


def test_other_seeds_break_process_alone() -> None:
    found = held(list(BASE), [0.96, 0.94, 0.95, 0.945, 0.955], same_seeds=False)
    assert "other seeds" in found.process[0]
    assert not found.conclusion


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (["float:nan", *BASE[1:]], "not finite"),
        (["float:inf", *BASE[1:]], "not finite"),
        (BASE[:3], "3 seeds, the base 5"),
    ],
)
def test_gaps_hold_at_no_level(head: list[float | str], words: str) -> None:
    assert words in held(list(BASE), head).faults[0]


def test_missing_metric_holds_at_no_level_and_a_new_one_never_fails() -> None:
    (missing,) = compare_metrics([made(list(BASE))], [], True)
    assert missing.comparison.state == "missing"
    assert "missing" in missing.faults[0]
    (new,) = compare_metrics([], [made(list(BASE))], True)
    assert new.comparison.state == "new"
    assert not new.faults
    assert new.warnings


def test_other_direction_is_another_metric() -> None:
    found = compare_metrics([made(list(BASE))], [made([0.9] * 5, direction="lower")], True)[0]
    assert found.faults
