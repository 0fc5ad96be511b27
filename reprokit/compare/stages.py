"""The diff of two traces: which stages differ, by how much, and which of them say something of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from reprokit.compare import sketches
from reprokit.compare.faults import intrinsic_faults, missed
from reprokit.compare.tolerances import Tolerance, tolerance
from reprokit.model.canonical import tagged
from reprokit.model.comparison import StageComparison, StageError, StageInvariance
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.trace import Number, Stage

State = Literal["ok", "unavailable", "unstable", "blind", "new", "gone", "other_version"]
Kind = Literal["drifted", "unapproved", "blind"]
_UNEQUAL: Number = "float:nan"  # of a document that says unequal and states no difference
# The seed of an experiment moves these parts of a probe by design, and no others.
SEEDED = ("rng.", "sampling.", "training.", "metrics.")


@dataclass(frozen=True)
class StageDiff:
    """One stage on both sides. `faults` are what holds at no level, whatever a baseline says."""

    base: Stage | None
    head: Stage | None
    comparison: StageComparison
    faults: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the stage."""
        return self.comparison.name

    @property
    def operator(self) -> str:
        """Operator class of the stage."""
        return self.comparison.operator

    @property
    def drifted(self) -> bool:
        """Whether the two sides disagree in a way that counts."""
        return self.comparison.difference == "drifted"

    @property
    def own(self) -> bool:
        """Whether it disagrees though nothing it consumes does, or misses a known answer."""
        return (self.drifted and not self.comparison.follows) or self.missed

    @property
    def missed(self) -> bool:
        """Whether the head misses this stage's known answer."""
        return self.head is not None and missed(self.head)

    @property
    def seeded(self) -> bool:
        """Whether another seed moves it by design."""
        return self.operator == "rng" or self.name.startswith(SEEDED)


def compare_stages(base: Fingerprint, head: Fingerprint) -> list[StageDiff]:
    """Every stage by name: the base's in the order of its trace, then those only the head has."""
    old, new = ({stage.name: stage for stage in side.stages} for side in (base, head))
    names = [*old, *(name for name in new if name not in old)]
    states = {name: _state(old.get(name), new.get(name)) for name in names}
    moved = {name for name in names if _moves_others(old.get(name), new.get(name), states[name])}
    unapproved = _unapproved(states, {name: old[name].inputs for name in names if name in old}, moved)
    return [_compare(old.get(name), new.get(name), states[name], moved, name in unapproved) for name in names]


def _state(base: Stage | None, head: Stage | None) -> State:
    if head is None or head.sha256 is None:
        return "gone" if base is not None and base.sha256 is not None else "unavailable"
    if base is None or base.sha256 is None:
        return "new"
    if base.version != head.version:
        return "other_version"
    if "unstable" in (base.state, head.state):
        return "unstable"
    # a head that lost its control proves nothing by being equal; that it differs is as true as before
    if base.state == "blind" or (head.state == "blind" and base.sha256 == head.sha256):
        return "blind"
    return "ok"


def _moves_others(base: Stage | None, head: Stage | None, state: State) -> bool:
    """Whether what consumes this stage has other inputs on the two sides; true of a blind stage that differs too."""
    if state in ("gone", "unstable"):
        return True
    return (
        base is not None
        and head is not None
        and state not in ("new", "unavailable")
        and base.sha256 != head.sha256
    )


def _unapproved(states: dict[str, State], inputs: dict[str, list[str]], moved: set[str]) -> set[str]:
    """Stages of another version, and those that differ while every input of theirs that moved is one of these."""
    found = {name for name, state in states.items() if state == "other_version"}
    waiting = {
        name: moved.intersection(inputs[name])
        for name in moved
        if states[name] in ("ok", "blind")  # both sides have it, so that the base knows its inputs
    }
    consumers: dict[str, list[str]] = defaultdict(list)
    for name, sources in waiting.items():
        for source in sources:
            consumers[source].append(name)
    reached = list(found)
    while reached:
        source = reached.pop()
        for name in consumers[source]:
            waiting[name].discard(source)
            if not waiting[name] and name not in found:
                found.add(name)
                reached.append(name)
    return found


def _compare(
    base: Stage | None, head: Stage | None, state: State, moved: set[str], unapproved: bool
) -> StageDiff:
    shown = base or head  # the base is the approved side: a head cannot redefine what it is held to
    assert shown is not None  # every name comes from one of the sides
    both = (
        base is not None and head is not None and state not in ("new", "gone", "unavailable", "other_version")
    )
    equal = base.sha256 == head.sha256 if both and base and head else None
    error, allowed = _error(base, head) if equal is False and base and head else (None, None)
    faults = tuple(intrinsic_faults(head)) if head is not None and head.sha256 is not None else ()
    if state == "gone":
        faults += (f"{shown.name} is gone: {_why_gone(head)}",)
    elif both and base and head:
        faults += tuple(_lost(base, head))
        faults += () if equal else tuple(_faults_of_pair(base, head, error, unapproved))
    follows = equal is not True and any(name in moved for name in shown.inputs)
    note = "; ".join((*_notes(base, head, state, allowed, unapproved), *faults)) or None
    comparison = StageComparison(
        name=shown.name,
        operator=shown.operator,
        kind=shown.kind,
        state=state,
        equal=equal,
        difference=_difference(state, equal, unapproved),
        follows=follows,
        error=error,
        note=note,
        invariance=_invariance(base, head),
    )
    return StageDiff(base, head, comparison, faults)


def _invariance(base: Stage | None, head: Stage | None) -> StageInvariance | None:
    """Both sides' distance from the stage that computes the same numbers in another way."""
    found = [stage.invariance if stage is not None else None for stage in (base, head)]
    known = next((one for one in reversed(found) if one is not None), None)
    if known is None:
        return None
    old, new = (None if one is None else 0.0 if one.equal else one.largest or _UNEQUAL for one in found)
    return StageInvariance(reference=known.reference, base=old, head=new)


def _difference(state: State, equal: bool | None, unapproved: bool) -> Kind | None:
    """The one rule of what counts as a difference, and of which kind."""
    if state in ("unstable", "gone"):
        return "drifted"
    if state == "blind":
        return "blind" if equal is False else None
    if unapproved:
        return "unapproved"
    return "drifted" if equal is False else None


def _error(base: Stage, head: Stage) -> tuple[StageError | None, Tolerance | None]:
    found = sketches.distance(base, head)
    allowed = tolerance(base)
    if found is None:
        return None, allowed
    measured = found.relative if found.share is None else found.share
    error = StageError(
        relative=tagged(found.relative),
        uncertainty=found.uncertainty,
        largest_sampled=tagged(found.largest),
        flipped=found.flipped,
        share=tagged(found.share),
        tolerance=None if allowed is None else allowed.value,
        within=allowed is not None and measured <= allowed.value,
    )
    return error, allowed


def _lost(base: Stage, head: Stage) -> Iterator[str]:
    """Evidence that the base has and the head does not show, whatever the hashes are."""
    if base.bound is not None and head.bound is None:
        yield f"{base.name} has no bound in the head, so that nothing says whether its error is that of rounding"
    if base.control is not None and head.control is None:
        yield f"{base.name} has no control in the head, so that nothing says whether it can move"


def _faults_of_pair(base: Stage, head: Stage, error: StageError | None, unapproved: bool) -> Iterator[str]:
    """What no level forgives two different results; another version excuses other numbers, but no new NaN."""
    known = base.kind == "invariant" or head.kind == "invariant"
    if known and not unapproved:
        yield f"{base.name} is a known answer and differs from the base"
    elif not known and base.sketch is not None and head.sketch is None:
        yield f"{base.name} has no sketch in the head, so that a new NaN cannot be excluded"
    old, new = sketches.non_finite(base.sketch), sketches.non_finite(head.sketch)
    if head.sketch is not None and old != new and not (known and base.sketch is None):
        yield f"{base.name} has {new[0]} NaN and {new[1]} infinite elements, the base {old[0]} and {old[1]}"
    elif base.name.split(".")[0] == "logits" and not unapproved and not (error is not None and error.within):
        yield f"{base.name} is further off than its tolerance allows"


def _notes(
    base: Stage | None, head: Stage | None, state: State, allowed: Tolerance | None, unapproved: bool
) -> Iterator[str]:
    if state == "other_version" and base and head:
        yield f"version {head.version} has no baseline: version {base.version} is approved"
    elif unapproved:
        yield "it follows a stage of another version, and nothing else that it consumes differs"
    for side, stage in (("base", base), ("head", head)):
        if stage is not None and stage.reason:
            yield f"{stage.state} in the {side}: {stage.reason}"
    if base and head and base.sha256 and head.sha256 and (base.dtype, base.shape) != (head.dtype, head.shape):
        yield f"{base.dtype}{base.shape} became {head.dtype}{head.shape}"
    if allowed is not None:
        yield f"tolerance: {allowed.origin}"


def _why_gone(head: Stage | None) -> str:
    if head is None:
        return "the base has it and the head has not"
    return f"unavailable in the head: {head.reason or 'no reason is recorded'}"
