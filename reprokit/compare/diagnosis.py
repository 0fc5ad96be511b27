"""What kind of difference it is, where it starts, and whether the change under review can be its cause.

The order is the one in which a person should search: what differs from run to run, then data, weights, known
answers, seed, environment, code, and chance last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from reprokit.compare.environment import Moved, moved
from reprokit.compare.faults import intrinsic_faults
from reprokit.compare.metrics import MetricDiff
from reprokit.compare.stages import StageDiff
from reprokit.model.comparison import Check, Diagnosis, DiagnosisClass, FieldChange

CausedByChange = Literal["yes", "no", "possible"]
Cause = Literal["data", "weights", "code", "environment", "randomness"]
Mark = Literal["cause", "differs", "agrees", "unknown"]
# Places to search, in this order, and the classes of a diagnosis that one of them explains.
CAUSES: dict[Cause, tuple[DiagnosisClass, ...]] = {
    "data": ("data",),
    "weights": ("weights",),
    "code": ("code",),
    "environment": ("environment",),
    "randomness": ("logic", "nondeterministic-kernel", "statistical"),
}
_LONGEST = 80
_MOST_NAMES = 5


@dataclass(frozen=True)
class Difference:
    """Everything a diagnosis is made of."""

    stages: Sequence[StageDiff]
    metrics: Sequence[MetricDiff]
    changes: Sequence[FieldChange]
    seeds_differ: bool

    @cached_property
    def own(self) -> list[StageDiff]:
        """Stages that say something of their own."""
        return [stage for stage in self.stages if stage.own]

    @cached_property
    def drifted(self) -> list[StageDiff]:
        """Stages that disagree in a way that counts."""
        return [stage for stage in self.stages if stage.drifted]

    @cached_property
    def blind(self) -> list[StageDiff]:
        """Stages that disagree in a way that proves nothing."""
        return [stage for stage in self.stages if stage.comparison.difference == "blind"]

    @property
    def numbers(self) -> bool:
        """Whether any number that counts differs from an approved one."""
        return bool(self.own or self.drifted) or any(metric.moved for metric in self.metrics)

    @property
    def anything(self) -> bool:
        """Whether there is anything to explain."""
        return self.numbers or any(
            stage.faults or stage.comparison.difference == "unapproved" for stage in self.stages
        )

    def relevant(self, code: bool) -> list[FieldChange]:
        """Changed fields that can matter, of the measuring code or of the environment.

        A commit is neither: the probe runs none of the code that it stands for.
        """
        return [
            change
            for change in self.changes
            if change.field.startswith("source.") == code
            and not change.field.startswith(("seeds.", "run."))
            and change.relevance != "unlikely"
        ]


def names(stages: Sequence[StageDiff]) -> str:
    """The names of stages, the first few of many."""
    more = f" and {len(stages) - _MOST_NAMES} more" if len(stages) > _MOST_NAMES else ""
    return ", ".join(stage.name for stage in stages[:_MOST_NAMES]) + more


def evidence(stages: Sequence[StageDiff]) -> list[Moved]:
    """Operator classes that moved of their own accord, from the kernels alone where any of them did."""
    own = [stage for stage in stages if stage.own and stage.comparison.state not in ("gone", "other_version")]
    kernels = [stage for stage in own if stage.name.startswith("kernel.")]
    return [moved(stage.operator, stage.name, _other_kernels(stage)) for stage in kernels or own]


def _other_kernels(stage: StageDiff) -> bool:
    """Whether both sides saw the names of a stage's GPU kernels, and not the same ones."""
    old, new = (None if side is None else side.kernels for side in (stage.base, stage.head))
    return old is not None and new is not None and old != new


def diagnose(difference: Difference) -> Diagnosis:
    """The diagnosis of a difference; its class is null where there is nothing to explain."""
    if not difference.anything:
        reason = "No number differs."
        if difference.blind:
            reason = f"Only blind stages differ, which proves nothing: {names(difference.blind)}."
        return Diagnosis(
            class_=None,
            caused_by_change="no",
            first_stage=None,
            operators=[],
            reason=reason,
            checklist=checklist(difference, None),
        )
    kind, caused, first, words = _classify(difference)
    operators = _operators(difference.own)
    parts = [words]
    if first is not None and difference.numbers:
        parts.append(f"The first stage that differs is {first.name}.")
        parts += [f"Operator classes that moved: {', '.join(operators)}."] if operators else []
    return Diagnosis(
        class_=kind,
        caused_by_change=caused,
        first_stage=None if first is None else first.name,
        operators=operators,  # type: ignore[arg-type]  # operators of stages
        reason=" ".join(parts),
        checklist=checklist(difference, kind),
    )


def checklist(found: Difference, kind: DiagnosisClass | None) -> list[Check]:
    """Each place where a difference can come from, in the order of search, and what was seen there.

    `kind` is the class that was found: it says which of the places that differ is taken for the cause.
    """
    environment, code = found.relevant(code=False), found.relevant(code=True)
    seen: dict[Cause, tuple[Mark, str]] = {
        "data": _inputs(found, "data."),
        "weights": _inputs(found, "weights."),
        "code": ("differs", f"The code differs: {_change(code[0])}{_more(code)}.")
        if code
        else ("agrees", "The measuring code is the same."),
        "environment": ("differs", f"It differs: {_change(environment[0])}{_more(environment)}.")
        if environment
        else ("agrees", "No recorded field that can change numbers differs."),
        "randomness": _randomness(found),
    }
    return [
        Check(
            cause=cause, mark="cause" if mark == "differs" and kind in CAUSES[cause] else mark, reason=reason
        )
        for cause, (mark, reason) in seen.items()
    ]


def _inputs(found: Difference, prefix: str) -> tuple[Mark, str]:
    inputs = [stage for stage in found.stages if _is_input(stage, prefix)]
    if differing := [stage for stage in inputs if stage.drifted]:
        return "differs", f"Not the same: {names(differing)}."
    compared = [stage for stage in inputs if stage.comparison.equal]
    if not compared:
        return "unknown", "No stage of them was compared."
    return "agrees", f"All {len(compared)} stages are equal." if len(compared) > 1 else "Its stage is equal."


def _randomness(found: Difference) -> tuple[Mark, str]:
    if unstable := [stage for stage in found.stages if stage.comparison.state == "unstable"]:
        return "differs", f"Repeated runs of one side differ: {names(unstable)}."
    if found.seeds_differ:
        seed = next((change for change in found.changes if change.field.startswith("seeds.")), None)
        return "differs", f"The seed differs: {_change(seed)}."
    return "agrees", "Equal seeds, and the repeats of each side agree."


def _classify(found: Difference) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    environment, code = found.relevant(code=False), found.relevant(code=True)
    unstable = [stage for stage in found.own if stage.comparison.state == "unstable"]
    unstable = unstable or [stage for stage in found.stages if stage.comparison.state == "unstable"]
    if unstable:
        return _unstable(unstable)
    caused: CausedByChange = "yes" if code and not environment else "possible"
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
        return _wrong(missed[0], "A known answer is missed", environment, code)
    if not found.numbers:
        return _nothing_moved(found, environment, code)
    started = found.own or found.drifted  # what starts behind a blind stage has nothing else before it
    unseeded = [stage for stage in started if not (found.seeds_differ and stage.seeded)]
    first = next(iter(unseeded or started), None)
    if found.seeds_differ and not unseeded and not any(metric.faults for metric in found.metrics):
        seed = next((change for change in found.changes if change.field.startswith("seeds.")), None)
        return "statistical", "possible", first, f"Only what the seed moves differs: {_change(seed)}."
    if environment:
        caused = "no" if all(change.external for change in [*environment, *code]) else "possible"
        return (
            "environment",
            caused,
            first,
            f"The environment differs: {_change(environment[0])}{_more(environment)}.",
        )
    if code:
        return "code", "yes", first, f"Nothing differs but the code: {_change(code[0])}{_more(code)}."
    if all(stage.name.startswith("metrics.") for stage in started) and all(
        metric.comparison.state in ("holds", "warns", "new") for metric in found.metrics
    ):
        return "statistical", "possible", first, "Only metrics moved, within the band of the base's seeds."
    return "unexplained", "possible", first, _unexplained(found.changes)


def _nothing_moved(
    found: Difference, environment: list[FieldChange], code: list[FieldChange]
) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    """What is wrong though no number left an approved one."""
    wrong = next((stage for stage in found.stages if stage.faults), None)
    if wrong is None:
        new = next(stage for stage in found.stages if stage.comparison.difference == "unapproved")
        caused: CausedByChange = "possible" if environment else "yes"
        return (
            "code",
            caused,
            new,
            f"Nothing differs but stages of a version that nobody approved, first {new.name}.",
        )
    words = f"No approved number differs, and yet {wrong.faults[0]}"
    if wrong.base is not None and any(intrinsic_faults(wrong.base)):
        return "environment", "no", wrong, f"{words}; the base has the same fault."
    return _wrong(wrong, words, environment, code)


def _unstable(stages: list[StageDiff]) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    races = [_races(stage) for stage in stages]
    racing = all(races)
    side = "head" if any(stage.head and stage.head.state == "unstable" for stage in stages) else "base"
    words = f"Repeated runs in one environment already differ in the {side}: "
    words += (
        f"torch documents {races[0]} as nondeterministic; the mode strict replaces or refuses it."
        if racing
        else "look for state, order, sampling or workers that no seed fixes before comparing machines."
    )
    return ("nondeterministic-kernel" if racing else "logic"), "possible", stages[0], words


def _races(stage: StageDiff) -> str | None:
    """The operator in a stage that torch documents as nondeterministic on the device it ran on."""
    return next((side.races for side in (stage.head, stage.base) if side is not None and side.races), None)


def _wrong(
    stage: StageDiff, words: str, environment: list[FieldChange], code: list[FieldChange]
) -> tuple[DiagnosisClass, CausedByChange, StageDiff | None, str]:
    """A number that is wrong on any machine: by the code where that differs, and else by the machine."""
    if code:
        caused: CausedByChange = "possible" if environment else "yes"
        return "code", caused, stage, f"{words}, and the code differs: {_change(code[0])}{_more(code)}."
    words = f"{words}, by equal code: a broken kernel or machine"
    words += f"; {_change(environment[0])}{_more(environment)}." if environment else "."
    return "environment", "no" if all(change.external for change in environment) else "possible", stage, words


def _is_input(stage: StageDiff, prefix: str) -> bool:
    """Whether a stage is data or weights themselves, rather than what a kernel made of them."""
    return stage.name.startswith(prefix) and stage.operator == "data"


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


def _more(changes: Sequence[object]) -> str:
    return f" and {len(changes) - 1} more" if len(changes) > 1 else ""


def _value(value: Any) -> str:
    text = "unset" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _unexplained(changes: Sequence[FieldChange]) -> str:
    words = "Nothing that is recorded and can change numbers differs. "
    others = [change.field for change in changes if change.field.startswith("run.other_variables")]
    shown = [field for field in others if field.startswith("run.other_variables.values")]
    if shown:
        return f"{words}A variable that is on no list of those that do differs: {shown[0]}{_more(shown)}."
    if others:
        return (
            words
            + "A variable that is not shown does: record both sides with `--detail full` and compare again."
        )
    return words + (
        "Run the probe twice on each machine first; if each agrees with itself, record both with `--detail full`, "
        "which also shows every package and variable."
    )
