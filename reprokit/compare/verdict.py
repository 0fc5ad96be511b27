"""Which levels of agreement hold, what breaks the others, and the verdict.

A level is broken by its own reasons, by those of every fault that holds at no level, and by a stage that nobody
approved: one of another version, or one that differs only because it follows such a stage. These alone are no
drift: the verdict is then `no_baseline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reprokit.compare.metrics import MetricDiff
from reprokit.compare.stages import StageDiff
from reprokit.compare.tolerances import EXACT
from reprokit.model.comparison import LEVELS, Level, LevelResult, Verdict
from reprokit.model.trace import figure

State = Literal["holds", "drifted", "no_baseline", "invalid"]
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
    new = [stage for stage in stages if stage.comparison.difference == "unapproved"]
    settled = [metric for metric in metrics if not _measured_by(metric, new)]
    unapproved = [_unapproved(stage) for stage in new]
    unapproved += [f"metric {metric.name} is measured by them" for metric in metrics if metric not in settled]
    faults = [fault for stage in stages for fault in stage.faults]
    faults += [fault for metric in metrics for fault in metric.faults]
    if not new and not any(stage.comparison.state in ("ok", "unstable") for stage in stages):
        faults.append(
            "no stage counts: everything is new, unavailable or blind, so that nothing was compared"
        )
    broken = {
        "bit": faults + _bit(stages, settled),
        "process": faults + _process(stages, settled, seeds),
        "conclusion": faults + _conclusion(stages, metrics),
    }
    # each level includes the weaker ones
    broken["process"] = list(dict.fromkeys(broken["process"] + broken["conclusion"]))
    broken["bit"] = list(dict.fromkeys(broken["bit"] + broken["process"]))
    levels = [
        LevelResult(level=level, holds=not (broken[level] or unapproved), reasons=broken[level] + unapproved)
        for level in LEVELS
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
    levels = [LevelResult(level=level, holds=False, reasons=[reason]) for level in LEVELS]
    return Judgement(Verdict(level="none", required=required, holds=False, state=state), levels)


def _unapproved(stage: StageDiff) -> str:
    if stage.comparison.state == "other_version":
        return f"{stage.name}: {stage.comparison.note}"
    return f"{stage.name} follows a stage of another version: it has no baseline either"


def _measured_by(metric: MetricDiff, stages: Sequence[StageDiff]) -> bool:
    """Whether one of these stages measures a metric that moved: `metrics.digits.losses` the metric `digits.loss`."""
    prefix = f"metrics.{metric.name.split('.')[0]}."
    return metric.moved and any(stage.name.startswith(prefix) for stage in stages)


def _bit(stages: Sequence[StageDiff], metrics: Sequence[MetricDiff]) -> list[str]:
    different = [f"{stage.name} has another hash" for stage in _moved(stages)]
    moved = [
        f"metric {metric.name} has other values"
        for metric in metrics
        if metric.moved and metric.comparison.state != "missing"
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
    beyond = [
        stage for stage in _moved(stages) if not (seeds is not None and stage.seeded) and not _within(stage)
    ]
    reasons += [_excess(stage) for stage in sorted(beyond, key=_badness, reverse=True)]
    return reasons + [reason for metric in metrics for reason in metric.process]


def _conclusion(stages: Sequence[StageDiff], metrics: Sequence[MetricDiff]) -> list[str]:
    reasons = [reason for metric in metrics for reason in metric.conclusion]
    measured = any(metric.comparison.state != "new" for metric in metrics)
    if not measured and any(stage.drifted for stage in stages):
        reasons.append("there is no metric: nothing says that the conclusion holds")
    return reasons


def _unstable(stages: Sequence[StageDiff]) -> list[str]:
    unstable = [stage.name for stage in stages if stage.comparison.state == "unstable"]
    return [f"{name} is unstable: its repeats differ" for name in unstable]


def _moved(stages: Sequence[StageDiff]) -> list[StageDiff]:
    """Stages with two results of which each is one; what is unstable or gone has a reason of its own."""
    return [stage for stage in stages if stage.drifted and stage.comparison.state == "ok"]


def _within(stage: StageDiff) -> bool:
    return stage.comparison.error is not None and stage.comparison.error.within


def _badness(stage: StageDiff) -> float:
    error = stage.comparison.error
    return float("inf") if error is None or isinstance(error.relative, str) else error.relative


def _excess(stage: StageDiff) -> str:
    error = stage.comparison.error
    if stage.comparison.kind == "invariant":
        return f"{stage.name} must be equal and is not"
    if stage.operator in EXACT and (error is None or error.tolerance is None):
        return f"{stage.name} must be equal and is not"
    if error is None:
        return f"{stage.name} differs, and without a sketch nobody knows how far"
    if error.tolerance is None:
        return f"{stage.name} differs, and no tolerance is known for it: it must be equal"
    if isinstance(error.relative if error.share is None else error.share, str):
        return f"{stage.name} is infinitely far off, {error.tolerance:.2g} was allowed"
    if error.share is not None:
        return f"{stage.name}: a share of {figure(error.share)} of its codes flipped, {error.tolerance:.2g} was allowed"
    return f"{stage.name} is off by {figure(error.relative)} relative, {error.tolerance:.2g} was allowed"
