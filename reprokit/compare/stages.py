"""The diff of two traces: which stages differ, by how much, and which of them say something of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from reprokit.compare import sketches
from reprokit.compare.tolerances import Tolerance, tolerance
from reprokit.errors import InvalidInput
from reprokit.model.canonical import tagged
from reprokit.model.comparison import StageComparison, StageError
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.trace import Stage

State = Literal["ok", "unavailable", "unstable", "blind", "new", "gone", "other_version"]
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
    def differs(self) -> bool:
        """Whether the two sides disagree, an unstable or vanished stage included; a blind one cannot."""
        state = self.comparison.state
        return state in ("unstable", "gone") or (state == "ok" and self.comparison.equal is False)

    @property
    def own(self) -> bool:
        """Whether it disagrees though nothing it consumes does, or misses a known answer."""
        return (self.differs and not self.comparison.follows) or self.missed

    @property
    def missed(self) -> bool:
        """Whether the head misses this stage's known answer."""
        return self.head is not None and _missed(self.head)

    @property
    def seeded(self) -> bool:
        """Whether another seed moves it by design."""
        return self.operator in ("rng", "metric") or self.name.startswith(SEEDED)


def compare_stages(base: Fingerprint, head: Fingerprint) -> list[StageDiff]:
    """Every stage by name: the base's in the order of its trace, then those only the head has.

    Raises:
        InvalidInput: a trace has two stages of one name, or its logit hash is not that of its logits.
    """
    old, new = by_name(base, "base"), by_name(head, "head")
    names = [*old, *(name for name in new if name not in old)]
    states = {name: _state(old.get(name), new.get(name)) for name in names}
    moved = {name for name in names if _moves_others(old.get(name), new.get(name), states[name])}
    return [_compare(old.get(name), new.get(name), states[name], moved) for name in names]


def by_name(fingerprint: Fingerprint, side: str) -> dict[str, Stage]:
    """Stages by name.

    Raises:
        InvalidInput: as `compare_stages`.
    """
    result = {stage.name: stage for stage in fingerprint.stages}
    if len(result) != len(fingerprint.stages):
        names = [stage.name for stage in fingerprint.stages]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{side}: /stages: two stages are called {twice}")
    logits = result.get("logits")
    if (logits.sha256 if logits else None) != fingerprint.logit_hash:
        raise InvalidInput(f"{side}: /logit_hash: expected the hash of the stage `logits`, found another one")
    return result


def intrinsic_faults(stage: Stage) -> Iterator[str]:
    """What is wrong with one stage by itself, no baseline needed: a missed known answer, a broken bound."""
    if _missed(stage):
        yield f"{stage.name} misses its known answer"
    if stage.kind == "invariant" and stage.state == "unstable":
        yield f"{stage.name} is a known answer and unstable"
    if stage.bound is not None and not stage.bound.holds:
        yield f"{stage.name} breaks its float64 bound by a factor of {stage.bound.ratio}"


def _missed(stage: Stage) -> bool:
    return stage.expected is not None and stage.sha256 is not None and stage.sha256 != stage.expected


def _state(base: Stage | None, head: Stage | None) -> State:
    if head is None or head.sha256 is None:
        return "gone" if base is not None and base.sha256 is not None else "unavailable"
    if base is None or base.sha256 is None:
        return "new"
    if base.version != head.version:
        return "other_version"
    for state in ("unstable", "blind"):
        if state in (base.state, head.state):
            return "unstable" if state == "unstable" else "blind"
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


def _compare(base: Stage | None, head: Stage | None, state: State, moved: set[str]) -> StageDiff:
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
    elif equal is False and base and head:
        faults += tuple(_faults_of_pair(base, head, error))
    follows = equal is not True and any(name in moved for name in shown.inputs)
    note = "; ".join((*_notes(base, head, state, allowed), *faults)) or None
    comparison = StageComparison(
        name=shown.name,
        operator=shown.operator,
        kind=shown.kind,
        state=state,
        equal=equal,
        follows=follows,
        error=error,
        note=note,
    )
    return StageDiff(base, head, comparison, faults)


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
        tolerance=None if allowed is None else allowed.value,
        within=allowed is not None and measured <= allowed.value,
    )
    return error, allowed


def _faults_of_pair(base: Stage, head: Stage, error: StageError | None) -> Iterator[str]:
    if base.kind == "invariant" or head.kind == "invariant":
        yield f"{base.name} is a known answer and differs from the base"
    elif base.sketch is not None and head.sketch is None:
        yield f"{base.name} has no sketch in the head, so that a new NaN cannot be excluded"
    if (
        base.sketch is not None
        and head.sketch is not None
        and sketches.non_finite_changed(base.sketch, head.sketch)
    ):
        yield (
            f"{base.name} has {head.sketch.nan} NaN and {head.sketch.infinite} infinite elements, "
            f"the base {base.sketch.nan} and {base.sketch.infinite}"
        )
    elif base.name.split(".")[0] == "logits" and not (error is not None and error.within):
        yield f"{base.name} is further off than its tolerance allows"


def _notes(base: Stage | None, head: Stage | None, state: State, allowed: Tolerance | None) -> Iterator[str]:
    if state == "other_version" and base and head:
        yield f"version {head.version} has no baseline: version {base.version} is approved"
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
