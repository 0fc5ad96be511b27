"""What kind of difference it is, where it starts, and whether the change under review can be its cause.

The order is the one in which a person should search: what differs from run to run, then data, weights, known
answers, seed, environment, code, and chance last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reprokit.compare.environment import Moved, moved
from reprokit.compare.metrics import MetricDiff
from reprokit.compare.stages import StageDiff
from reprokit.model.comparison import Diagnosis, DiagnosisClass, FieldChange

CausedByChange = Literal["yes", "no", "possible"]
# Operators whose parallel forms add in the order in which threads arrive (torch.use_deterministic_algorithms).
RACING = frozenset({"scatter"})
_LONGEST = 80


@dataclass(frozen=True)
class Difference:
    """Everything a diagnosis is made of."""

    stages: Sequence[StageDiff]
    metrics: Sequence[MetricDiff]
    changes: Sequence[FieldChange]
    seeds_differ: bool
    own: list[StageDiff] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", [stage for stage in self.stages if stage.own])

    @property
    def anything(self) -> bool:
        """Whether any number differs."""
        shown = [metric.comparison for metric in self.metrics]
        return any(
            stage.differs or stage.faults or stage.comparison.state == "other_version"
            for stage in self.stages
        ) or any(not metric.equal and metric.state != "new" for metric in shown)

    def relevant(self, code: bool) -> list[FieldChange]:
        """Changed fields that can matter, of the code under review or of the environment."""
        return [
            change
            for change in self.changes
            if change.field.startswith("source.") == code
            and not change.field.startswith(("seeds.", "run."))
            and (code or change.relevance != "unlikely")
        ]


def evidence(stages: Sequence[StageDiff]) -> list[Moved]:
    """Operator classes that moved of their own accord, from the kernels alone where any of them did."""
    own = [stage for stage in stages if stage.own and stage.comparison.state not in ("gone", "other_version")]
    kernels = [stage for stage in own if stage.name.startswith("kernel.")]
    return [moved(stage.operator, stage.name) for stage in kernels or own]


def diagnose(difference: Difference) -> Diagnosis:
    """The diagnosis of a difference; its class is null where no number differs."""
    if not difference.anything:
        return Diagnosis(
            class_=None, caused_by_change="no", first_stage=None, operators=[], reason="No number differs."
        )
    kind, caused, first, words = _classify(difference)
    operators = _operators(difference.own)
    parts = [words]
    if first is not None:
        parts.append(
            f"The first stage that differs is {first.name}"
            + (f" ({', '.join(operators)} moved)." if operators else ".")
        )
    return Diagnosis(
        class_=kind,
        caused_by_change=caused,
        first_stage=None if first is None else first.name,
        operators=operators,  # type: ignore[arg-type]  # operators of stages
        reason=" ".join(parts),
    )


def _classify(found: Difference) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    environment, source = found.relevant(code=False), found.relevant(code=True)
    unstable = [stage for stage in found.own if stage.comparison.state == "unstable"]
    unstable = unstable or [stage for stage in found.stages if stage.comparison.state == "unstable"]
    if unstable:
        return _unstable(unstable)
    own = [stage for stage in found.own if not (found.seeds_differ and stage.seeded)] or found.own
    first = next(iter(own), None) or next(
        (stage for stage in found.stages if stage.differs or stage.faults), None
    )
    caused: CausedByChange = "possible" if environment else "yes"
    if data := [stage for stage in found.own if _is_input(stage, "data.")]:
        return "data", caused, data[0], "The input data differ, not only what is computed from them."
    if weights := [stage for stage in found.own if _is_input(stage, "weights.")]:
        return "weights", caused, weights[0], "The weights differ, not only what is computed from them."
    missed = [
        stage
        for stage in found.own
        if stage.missed or (stage.comparison.kind == "invariant" and stage.faults)
    ]
    if missed:
        return _missed(missed[0], environment, source)
    if found.seeds_differ and all(stage.seeded for stage in found.own):
        seed = next((change for change in found.changes if change.field.startswith("seeds.")), None)
        return "statistical", "possible", first, f"Only what the seed moves differs: {_change(seed)}."
    if environment:
        caused = "no" if all(change.external for change in [*environment, *_numeric(source)]) else "possible"
        return (
            "environment",
            caused,
            first,
            f"The environment differs: {_change(environment[0])}{_more(environment)}.",
        )
    if source:
        return "code", "yes", first, f"Nothing differs but the code: {_change(source[0])}{_more(source)}."
    if all(stage.operator == "metric" for stage in found.own) and all(
        metric.comparison.state in ("holds", "warns", "new") for metric in found.metrics
    ):
        return "statistical", "possible", first, "Only metrics moved, within the band of the base's seeds."
    return "unexplained", "possible", first, _unexplained(found.changes)


def _unstable(stages: list[StageDiff]) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    racing = all(stage.operator in RACING for stage in stages)
    side = "head" if any(stage.head and stage.head.state == "unstable" for stage in stages) else "base"
    words = f"Repeated runs in one environment already differ in the {side}: "
    words += (
        "an operator that adds in the order in which threads arrive."
        if racing
        else "look for state, order, sampling or workers that no seed fixes before comparing machines."
    )
    return ("nondeterministic-kernel" if racing else "logic"), "possible", stages[0], words


def _missed(
    stage: StageDiff, environment: list[FieldChange], source: list[FieldChange]
) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    if source:
        caused: CausedByChange = "possible" if environment else "yes"
        return (
            "code",
            caused,
            stage,
            f"A known answer is missed and the code differs: {_change(source[0])}{_more(source)}.",
        )
    words = "A known answer is missed by equal code: a broken kernel or machine"
    words += f"; {_change(environment[0])}{_more(environment)}." if environment else "."
    return "environment", "no" if all(change.external for change in environment) else "possible", stage, words


def _is_input(stage: StageDiff, prefix: str) -> bool:
    """Whether a stage is data or weights themselves, rather than what a kernel made of them."""
    return stage.name.startswith(prefix) and stage.operator == "data"


def _numeric(source: list[FieldChange]) -> list[FieldChange]:
    return [change for change in source if change.relevance != "unlikely"]


def _operators(own: list[StageDiff]) -> list[str]:
    """Operator classes, those of most kernels first, then those of most stages."""
    counted = [stage for stage in own if stage.comparison.state != "gone"]
    kernels = Counter(stage.operator for stage in counted if stage.name.startswith("kernel."))
    stages = Counter(stage.operator for stage in counted)
    return sorted(stages, key=lambda operator: (-kernels[operator], -stages[operator], operator))


def _change(change: FieldChange | None) -> str:
    if change is None:
        return "seeds"
    return f"{change.field} {_value(change.base)} → {_value(change.head)}"


def _more(changes: list[FieldChange]) -> str:
    return f" and {len(changes) - 1} more" if len(changes) > 1 else ""


def _value(value: Any) -> str:
    text = "unset" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _unexplained(changes: Sequence[FieldChange]) -> str:
    words = "Nothing that is recorded and can change numbers differs. "
    if any(change.field.startswith("run.other_variables") for change in changes):
        return (
            words
            + "A variable that is not shown does: record both sides with `--detail full` and compare again."
        )
    return words + (
        "Run the probe twice on each machine first; if each agrees with itself, record both with `--detail full`, "
        "which also shows every package and variable."
    )
