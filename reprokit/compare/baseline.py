"""Baselines: which approval a fingerprint is held against, and how one is approved."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from reprokit.compare.comparing import (
    compare_fingerprints,
    fingerprint_side,
    incomparable,
    refuse_contradictions,
    reseal,
    seal,
)
from reprokit.compare.faults import intrinsic_faults, unapprovable
from reprokit.compare.verdict import refused
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.baseline import MOST_APPROVALS, Approval, Baseline
from reprokit.model.comparison import LEVELS, Comparison, Diagnosis, Level, Side
from reprokit.model.fingerprint import Fingerprint, hardware

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,119}")  # the model's `Name`


@dataclass(frozen=True)
class Approved:
    """What approving did: the baseline, the place of the approval and whether it was there before."""

    baseline: Baseline
    index: int
    already: bool


def match(baseline: Baseline, head: Fingerprint, required: Level = "bit") -> Comparison:
    """The comparison with the approval that agrees best, the nearest environment among equals.

    Without an approval for the head's class of hardware and way of running, the state is `no_baseline`.

    Raises:
        InvalidInput: the head or an approval for its hardware contradicts itself.
    """
    refuse_contradictions(head, "head")
    candidates = [
        (index, approval.fingerprint)
        for index, approval in enumerate(baseline.approvals)
        if approval.fingerprint.class_key == head.class_key and not incomparable(approval.fingerprint, head)
    ]
    if not candidates:
        if baseline.approvals and all(
            approval.fingerprint.probe.name != head.probe.name for approval in baseline.approvals
        ):  # approving would mix workloads in one cell: this is no missing approval
            index = len(baseline.approvals) - 1
            latest = baseline.approvals[index].fingerprint
            return compare_fingerprints(latest, head, required, _side(baseline.cell, index, latest))
        return nothing_approved(baseline.cell, baseline.approvals, head, required)
    compared = [
        compare_fingerprints(fingerprint, head, required, _side(baseline.cell, index, fingerprint))
        for index, fingerprint in candidates
    ]
    best = min(compared, key=_distance)
    return reseal(
        msgspec.structs.replace(best, base=msgspec.structs.replace(best.base, exact=best.verdict.holds))
    )


def approve(
    before: Baseline | None, fingerprint: Fingerprint, cell: str, reason: str | None = None
) -> Approved:
    """The baseline of `cell` with `fingerprint` added; where its numbers and environment are approved, `before`.

    Raises:
        InvalidInput: the fingerprint cannot be a baseline, or `before` is another cell's or full.
    """
    refuse_contradictions(fingerprint, "fingerprint")
    if problem := unapprovable(fingerprint):
        raise InvalidInput(f"this fingerprint cannot be approved: {problem}")
    if canonical.digest(canonical.tagged(msgspec.to_builtins(fingerprint))) != fingerprint.digest:
        raise InvalidInput(
            "this fingerprint spells out keys that say nothing, as no probe does: measure anew"
        )
    check_cell(cell)
    if before is not None and before.cell != cell:
        raise InvalidInput(f"/cell: expected {cell}, found {before.cell}")
    approvals = [] if before is None else before.approvals
    wanted = _measured(fingerprint)
    for index, approval in enumerate(approvals):
        if before is not None and _measured(approval.fingerprint) == wanted:
            return Approved(before, index, already=True)
    if len(approvals) >= MOST_APPROVALS:
        raise InvalidInput(
            f"it has {MOST_APPROVALS} approvals already, the most there may be: remove old ones"
        )
    document = {
        "document": "baseline",
        "schema_version": 1,
        "cell": cell,
        "approvals": msgspec.to_builtins([*approvals, Approval(reason=reason, fingerprint=fingerprint)]),
    }
    try:
        after = msgspec.convert(canonical.sealed(canonical.tagged(document)), Baseline)
    except msgspec.ValidationError as error:  # a reason that is too long
        raise InvalidInput(f"this approval is no valid one: {error}") from error
    return Approved(after, len(approvals), already=False)


def check_cell(cell: str) -> str:
    """`cell`, if it is the name of one and so also a plain file name.

    Raises:
        InvalidInput: it is not.
    """
    if not _NAME.fullmatch(cell):
        raise InvalidInput(
            f"cell {cell!a}: a name has letters, digits, `_`, `.` and `-`, and starts with none of the last three"
        )
    return cell


def _measured(fingerprint: Fingerprint) -> str:
    """Digest over numbers and environment: another commit of the repository changes neither."""
    source = msgspec.structs.replace(fingerprint.source, commit=None, dirty=None)
    absent = [entry for entry in fingerprint.absent if not entry.field.startswith("source.")]
    same = msgspec.structs.replace(fingerprint, source=source, absent=absent)
    return canonical.digest(msgspec.to_builtins(same))


def _side(cell: str, index: int, fingerprint: Fingerprint) -> Side:
    return msgspec.structs.replace(
        fingerprint_side(fingerprint), source="baseline", cell=cell, approval=index, exact=False
    )


def _distance(comparison: Comparison) -> tuple[int, int, int, int]:
    """How far an approval is: by level, then by changed fields that can matter, then by all; the last one wins."""
    level = comparison.verdict.level
    ranked = sum(change.relevance != "unlikely" for change in comparison.environment)
    place = LEVELS.index(level) if level in LEVELS else len(LEVELS)
    return place, ranked, len(comparison.environment), -(comparison.base.approval or 0)


def nothing_approved(cell: str, approvals: list[Approval], head: Fingerprint, required: Level) -> Comparison:
    """The comparison with no approval: there is none, none is of the head's hardware, or none ran as the head did."""
    known = [one.fingerprint for one in approvals if hardware(one.fingerprint) == hardware(head)]
    if known:
        ways = sorted({_way(one) for one in known})
        missing = f"has approvals, but none for {_way(head)}"
        warnings = [f"approved for this hardware are: {'; '.join(ways)}"]
    elif approvals:
        missing = f"has approvals, but none for {head.class_key}"
        warnings = [f"approved are: {', '.join(sorted({one.fingerprint.class_key for one in approvals}))}"]
    else:
        missing, warnings = "has no baseline yet", []
    reason = f"Cell {cell} {missing}: this is no drift, nothing is known yet."
    diagnosis = Diagnosis(
        class_=None, caused_by_change="possible", first_stage=None, operators=[], reason=reason
    )
    faults = [fault for stage in head.stages if stage.sha256 for fault in intrinsic_faults(stage)]
    side = Side(
        source="baseline",
        cell=cell,
        approval=None,
        exact=False,
        digest=None,
        class_key=head.class_key if known else None,
        logit_hash=None,
    )
    return seal(side, head, refused("no_baseline", required, reason), diagnosis, [*warnings, *faults], [])


def _way(fingerprint: Fingerprint) -> str:
    """How a probe ran, in words."""
    probe = fingerprint.probe
    return f"probe {probe.name}, profile {probe.profile}, device {probe.device}, mode {probe.mode}"
