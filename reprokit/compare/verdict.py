"""Which levels of agreement hold, what breaks the others, and the verdict.

A level is broken by its own reasons, by those of every fault that holds at no level, and by a stage whose version
nobody approved. The last alone is no drift: the verdict is then `no_baseline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reprokit.compare.metrics import MetricDiff
from reprokit.compare.stages import StageDiff
from reprokit.compare.tolerances import EXACT
from reprokit.model.comparison import Level, LevelResult, Verdict

State = Literal["holds", "drifted", "no_baseline", "invalid"]
_LEVELS: tuple[Level, ...] = ("bit", "process", "conclusion")  # strictest first
EXIT_CODES: dict[State, int] = {"holds": 0, "drifted": 1, "invalid": 2, "no_baseline": 5}


@dataclass(frozen=True)
class Judgement:
    """The verdict, and each level with what breaks it."""

    verdict: Verdict
    levels: list[LevelResult]


def judge(
    stages: Sequence[StageDiff], metrics: Sequence[MetricDiff], seeds: tuple[int, int] | None, required: Level
) -> Judgement:
    """The verdict over all stages and metrics; `seeds` are base's and head's where they differ."""
    faults = [fault for stage in stages for fault in stage.faults]
    faults += [fault for metric in metrics for fault in metric.faults]
    counting = [stage for stage in stages if stage.comparison.state in ("ok", "unstable")]
    if not counting:
        faults.append(
            "no stage counts: everything is new, unavailable or blind, so that nothing was compared"
        )
    broken = {
        "bit": faults + _bit(counting, metrics),
        "process": faults + _process(counting, metrics, seeds),
        "conclusion": faults + [reason for metric in metrics for reason in metric.conclusion],
    }
    # each level includes the weaker ones
    broken["process"] += [reason for reason in broken["conclusion"] if reason not in broken["process"]]
    broken["bit"] += [reason for reason in broken["process"] if reason not in broken["bit"]]
    unapproved = [
        f"{stage.name}: {stage.comparison.note or 'no baseline'}"
        for stage in stages
        if stage.comparison.state == "other_version"
    ]
    levels = [
        LevelResult(level=level, holds=not (broken[level] or unapproved), reasons=broken[level] + unapproved)
        for level in _LEVELS
    ]
    state: State = "drifted" if broken[required] else "no_baseline" if unapproved else "holds"
    verdict = Verdict(
        level=next((result.level for result in levels if result.holds), "none"),
        required=required,
        holds=state == "holds",
        state=state,
    )
    return Judgement(verdict, levels)


def refused(state: State, required: Level, reason: str) -> Judgement:
    """The judgement where nothing was compared."""
    levels = [LevelResult(level=level, holds=False, reasons=[reason]) for level in _LEVELS]
    return Judgement(Verdict(level="none", required=required, holds=False, state=state), levels)


def _bit(stages: Sequence[StageDiff], metrics: Sequence[MetricDiff]) -> list[str]:
    different = [f"{stage.name} has another hash" for stage in stages if _differs(stage)]
    moved = [
        f"metric {metric.comparison.name} has other values"
        for metric in metrics
        if not metric.comparison.equal and metric.comparison.state not in ("missing", "new")
    ]
    return _unstable(stages) + different + moved


def _process(
    stages: Sequence[StageDiff], metrics: Sequence[MetricDiff], seeds: tuple[int, int] | None
) -> list[str]:
    reasons = _unstable(stages)
    if seeds is not None:
        reasons.append(
            f"another seed, {seeds[1]} instead of {seeds[0]}: no two runs can be held side by side"
        )
    moved = [stage for stage in stages if _differs(stage)]
    beyond = [stage for stage in moved if not (seeds is not None and stage.seeded) and not _within(stage)]
    reasons += [_excess(stage) for stage in sorted(beyond, key=_badness, reverse=True)]
    return reasons + [reason for metric in metrics for reason in metric.process]


def _unstable(stages: Sequence[StageDiff]) -> list[str]:
    unstable = [stage.name for stage in stages if stage.comparison.state == "unstable"]
    return [f"{name} is unstable: its repeats differ" for name in unstable]


def _differs(stage: StageDiff) -> bool:
    return stage.comparison.state == "ok" and stage.comparison.equal is False


def _within(stage: StageDiff) -> bool:
    return stage.comparison.error is not None and stage.comparison.error.within


def _badness(stage: StageDiff) -> float:
    error = stage.comparison.error
    return float("inf") if error is None or isinstance(error.relative, str) else error.relative


def _excess(stage: StageDiff) -> str:
    error = stage.comparison.error
    if stage.operator in EXACT or stage.comparison.kind == "invariant":
        return f"{stage.name} must be equal and is not"
    if error is None:
        return f"{stage.name} differs, and without a sketch nobody knows how far"
    if error.tolerance is None:
        return f"{stage.name} differs, and no tolerance is known for it: it must be equal"
    if error.flipped is not None:
        return (
            f"{stage.name}: about {error.flipped} codes flipped, a share of {error.tolerance:.2g} was allowed"
        )
    relative = error.relative if isinstance(error.relative, str) else f"{error.relative:.2g}"
    return f"{stage.name} is off by {relative} relative, {error.tolerance:.2g} was allowed"
