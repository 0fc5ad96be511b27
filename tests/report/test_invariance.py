"""The invariance map in the reports."""

from __future__ import annotations

from typing import Any

from reprokit.compare import compare
from reprokit.report import invariance, markdown, terminal
from tests.compare import builders


def held(name: str, largest: float, reference: str = "batch.norm.alone.fp32") -> dict[str, Any]:
    found = {"reference": reference, "equal": largest == 0, "largest": largest}
    return builders.stage(name, "norm", invariance=found)


def measured(*stages: dict[str, Any]) -> Any:
    return builders.fingerprint([*builders.trace(), builders.stage("batch.norm.alone.fp32", "norm"), *stages])


BASE = measured(
    held("batch.norm.of_2.fp32", 0.0),
    held("batch.norm.cached.fp32", 2.5e-6),
    held("batch.linear.of_2.fp32", 0.0),
    held("collective.gradients.two_ranks", 3e-8, "collective.gradients.one_rank"),
)
HEAD = measured(
    held("batch.norm.of_2.fp32", 1e-7),
    held("batch.norm.cached.fp32", 2.5e-6),
    held("batch.linear.of_2.fp32", 0.0),
    held("collective.gradients.two_ranks", 3e-8, "collective.gradients.one_rank"),
)


def test_operators_and_conditions_make_a_table() -> None:
    head, rows = invariance.batch_table(compare(BASE, BASE))
    assert head == ("operator", "of 2", "cached")
    assert rows == [("norm fp32", "=", "2.5e-06"), ("linear fp32", "=", "")]


def test_what_is_no_longer_equal_shows_both_and_is_warned_of() -> None:
    comparison = compare(BASE, HEAD)
    assert invariance.batch_table(comparison)[1][0] == ("norm fp32", "= → 1e-07", "2.5e-06")
    assert [warning for warning in comparison.warnings if "another way" in warning] == [
        "1 stage is no longer what another way to compute it gives: batch.norm.of_2.fp32"
    ]


def test_other_stages_that_are_held_against_one_are_pairs() -> None:
    assert invariance.pair_table(compare(BASE, BASE))[1] == [
        ("collective.gradients.two_ranks", "collective.gradients.one_rank", "3e-08")
    ]


def test_both_reports_show_it() -> None:
    comparison = compare(BASE, HEAD)
    assert "| `norm fp32` | = → 1e-07 | 2.5e-06 |" in markdown.markdown(comparison)
    assert "norm fp32    = → 1e-07  2.5e-06" in terminal.text(comparison)


def test_without_such_stages_there_is_no_map() -> None:
    comparison = compare(builders.fingerprint(), builders.fingerprint())
    assert "nvariance" not in markdown.markdown(comparison) + terminal.text(comparison)


def test_a_map_of_thousands_is_cut() -> None:
    many = measured(*(held(f"batch.op{number % 60}.c{number}.fp32", 1.0) for number in range(300)))
    head, rows = invariance.batch_table(compare(many, many))
    assert (len(head), len(rows)) == (21, 50)


def test_a_document_that_says_unequal_by_nothing_is_not_equal() -> None:
    liar = held("batch.norm.of_2.fp32", 0.0)
    liar["invariance"]["equal"] = False
    assert invariance.batch_table(compare(measured(liar), measured(liar)))[1] == [("norm fp32", "NaN")]
