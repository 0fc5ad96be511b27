"""The words that every rendering of a comparison shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from reprokit.model.comparison import Comparison, MetricComparison, StageComparison
from reprokit.model.trace import Number

MOST_FIELDS = 10
MOST_STAGES = 10
MOST_REASONS = 3
SIGNS = {"holds": "✓", "drifted": "✗", "no_baseline": "?", "invalid": "!"}
STATES = {"holds": "holds", "drifted": "drifted", "no_baseline": "no baseline", "invalid": "invalid"}
CAUSED = {
    "yes": "this change caused it",
    "no": "this change cannot have caused it",
    "possible": "this change may have caused it",
}
T = TypeVar("T")


def headline(comparison: Comparison) -> str:
    """State, and whether the change under review can be the cause."""
    verdict, found = comparison.verdict, comparison.diagnosis
    words = f"{SIGNS[verdict.state]} {STATES[verdict.state]}"
    if verdict.state == "no_baseline":
        return f"{words}: nothing is approved for this {'stage' if comparison.base else 'hardware'} yet"
    if verdict.state == "invalid":
        return f"{words}: the two cannot be compared"
    if verdict.state == "holds":
        return words if found.class_ is None else f"{words} at level {verdict.level}, though not every bit"
    return words if found.class_ is None else f"{words}: {CAUSED[found.caused_by_change]}"


def sentence(comparison: Comparison) -> str:
    """The verdict in a sentence."""
    verdict = comparison.verdict
    against = _against(comparison)
    if comparison.base is None:
        return f"Level {verdict.required} is required, {against}."
    differing = [stage for stage in comparison.stages if diverges(stage)]
    level = f"level {verdict.level} holds" if verdict.level != "none" else "no level holds"
    return (
        f"Level {verdict.required} is required, {level}; {len(differing)} of {len(comparison.stages)} stages differ, "
        f"{against}."
    )


def _against(comparison: Comparison) -> str:
    base = comparison.base
    if base is None:
        return "and there is nothing to compare with"
    if base.source == "fingerprint":
        return "compared with one fingerprint"
    which = "which matches" if base.exact else "the nearest, as none matches"
    return f"compared with approval {base.approval} of cell {base.cell}, {which}"


def diverges(stage: StageComparison) -> bool:
    """Whether a stage has anything to show: it differs, is unstable or gone, or nothing is approved for it."""
    return stage.state in ("unstable", "gone", "other_version") or (
        stage.equal is False and stage.state != "blind"
    )


def notable_stages(comparison: Comparison) -> list[StageComparison]:
    """Diverging stages: the first, then kernels, then what moved of its own accord, then what follows."""
    first = comparison.diagnosis.first_stage
    found = [stage for stage in comparison.stages if diverges(stage) or stage.name == first]
    return sorted(
        found, key=lambda stage: (stage.name != first, not stage.name.startswith("kernel."), stage.follows)
    )


def split(items: Sequence[T], most: int) -> tuple[Sequence[T], int]:
    """The first `most` items and how many more there are."""
    return items[:most], max(len(items) - most, 0)


def error_text(stage: StageComparison) -> str:
    """How far a stage is off, or why that is not known."""
    if stage.error is None:
        known = {"other_version": "not compared", "gone": "gone"}
        return known.get(stage.state, "unknown" if stage.equal is False else "")
    error = stage.error
    if error.flipped is not None:
        return f"{figure(error.flipped)} codes flipped"
    sign = "" if error.uncertainty == 0 else f" ± {percent(error.uncertainty)}"
    return figure(error.relative) + sign


def allowed_text(stage: StageComparison) -> str:
    """What the tolerance is and whether the stage keeps it."""
    if stage.error is None:
        return stage.state if stage.state != "ok" else "must be equal"
    if stage.error.tolerance is None:
        return "✗ must be equal"
    share = " of the codes" if stage.error.flipped is not None else ""
    return f"{'✓ within' if stage.error.within else '✗ beyond'} {stage.error.tolerance:.2g}{share}"


def band_text(metric: MetricComparison) -> str:
    """The band of a metric."""
    if metric.low is None and metric.high is None:
        return "" if metric.state in ("new", "missing") else "not calibrated"
    return f"≥ {figure(metric.low, 6)}" if metric.low is not None else f"≤ {figure(metric.high, 6)}"


def figure(value: Number | None, digits: int = 2) -> str:
    """A number for reading."""
    if value is None:
        return "–"
    return value.removeprefix("float:") if isinstance(value, str) else f"{value:.{digits}g}"


def percent(value: Number) -> str:
    """A share for reading."""
    return value if isinstance(value, str) else f"{100 * value:.0f} %"


def next_steps(comparison: Comparison) -> list[tuple[str, str]]:
    """What to do and the command for it."""
    cell = comparison.base.cell if comparison.base is not None else None
    cell = cell or _cell_of_message(comparison) or "NAME"
    approve = f"reprokit baseline approve FINGERPRINT --cell {cell}"
    if comparison.verdict.state == "holds":
        return []
    if comparison.verdict.state == "no_baseline":
        return [("If these numbers are right, approve them", approve)]
    if comparison.verdict.state == "invalid":
        return []
    reproduce = "Run twice in this environment and compare: equal means environment, different means logic"
    return [
        (reproduce, "reprokit probe"),
        ("If the new numbers are right, approve them", approve),
    ]


def _cell_of_message(comparison: Comparison) -> str | None:
    words = comparison.diagnosis.reason.rpartition("--cell ")
    return words[2].strip() or None if words[1] else None
