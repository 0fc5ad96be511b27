"""Baselines: which approval a fingerprint is held against, and how one is approved."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reprokit.compare.comparing import compare_fingerprints, incomparable, reseal, seal
from reprokit.compare.stages import by_name, intrinsic_faults
from reprokit.compare.verdict import refused
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.baseline import Approval, Baseline
from reprokit.model.comparison import LEVELS, Comparison, Diagnosis, Level, Side
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.reading import read

MOST_APPROVALS = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,119}")  # the model's `Name`


@dataclass(frozen=True)
class Approved:
    """What approving did: the file's baseline, the place of the approval and whether it was there before."""

    baseline: Baseline
    index: int
    already: bool


def match(baseline: Baseline, head: Fingerprint, required: Level = "bit") -> Comparison:
    """The comparison with the approval that agrees best, the nearest environment among equals.

    Without an approval for the head's class of hardware and way of running, the state is `no_baseline`.

    Raises:
        InvalidInput: a trace contradicts itself.
    """
    candidates = [
        (index, approval.fingerprint)
        for index, approval in enumerate(baseline.approvals)
        if approval.fingerprint.class_key == head.class_key and not incomparable(approval.fingerprint, head)
    ]
    if not candidates:
        return _nothing_approved(baseline, head, required)
    compared = [
        compare_fingerprints(fingerprint, head, required, _side(baseline.cell, index, fingerprint))
        for index, fingerprint in candidates
    ]
    best = min(compared, key=_distance)
    assert best.base is not None
    side = msgspec.structs.replace(best.base, exact=best.verdict.holds)
    return reseal(msgspec.structs.replace(best, base=side))


def approve(path: Path, fingerprint: Fingerprint, cell: str, reason: str | None = None) -> Approved:
    """Add `fingerprint` to the baseline at `path`, creating file and folder; once approved, the file stays as it is.

    Raises:
        InvalidInput: the fingerprint cannot be a baseline, the file is none or another cell's, or it is full.
        OSError: the file cannot be written.
    """
    if problem := unapprovable(fingerprint):
        raise InvalidInput(f"this fingerprint cannot be approved: {problem}")
    check_cell(cell)
    before = read(path, Baseline) if path.exists() else None
    approvals = [] if before is None else before.approvals
    if before is not None and before.cell != cell:
        raise InvalidInput(f"{path}: /cell: expected {cell}, found {before.cell}")
    for index, approval in enumerate(approvals):
        if approval.fingerprint.digest == fingerprint.digest:
            assert before is not None
            return Approved(before, index, already=True)
    if len(approvals) >= MOST_APPROVALS:
        raise InvalidInput(
            f"{path}: it has {MOST_APPROVALS} approvals already, the most there may be: remove old ones"
        )
    document = {
        "document": "baseline",
        "schema_version": 1,
        "cell": cell,
        "approvals": msgspec.to_builtins([*approvals, Approval(reason=reason, fingerprint=fingerprint)]),
    }
    document = canonical.sealed(canonical.tagged(document))
    try:
        after = msgspec.convert(document, Baseline)
    except msgspec.ValidationError as error:  # a reason that is too long
        raise InvalidInput(f"this approval is no valid one: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    canonical.write_file(path, canonical.encode(document) + b"\n")
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


def unapprovable(fingerprint: Fingerprint) -> str | None:
    """What keeps a fingerprint from being a baseline, or None: nobody can be held to numbers that are wrong."""
    for stage in by_name(fingerprint, "fingerprint").values():
        if stage.state == "unstable":
            return f"{stage.name} is unstable: {stage.reason or 'its repeats differ'}"
        for fault in intrinsic_faults(stage):
            return fault
    return None


def _side(cell: str, index: int, fingerprint: Fingerprint) -> Side:
    return Side(
        source="baseline",
        cell=cell,
        approval=index,
        exact=False,
        digest=fingerprint.digest,
        class_key=fingerprint.class_key,
        logit_hash=fingerprint.logit_hash,
    )


def _distance(comparison: Comparison) -> tuple[int, int, int, int]:
    """How far an approval is: by level, then by changed fields that can matter, then by all; the last one wins."""
    level = comparison.verdict.level
    ranked = sum(change.relevance != "unlikely" for change in comparison.environment)
    place = LEVELS.index(level) if level in LEVELS else len(LEVELS)
    assert comparison.base is not None
    return place, ranked, len(comparison.environment), -(comparison.base.approval or 0)


def _nothing_approved(baseline: Baseline, head: Fingerprint, required: Level) -> Comparison:
    probe = head.probe
    reason = (
        f"Cell {baseline.cell} has no approval for {head.class_key} with probe {probe.name}, profile {probe.profile}, "
        f"device {probe.device}, mode {probe.mode}: this is no drift, nothing is known yet. "
        f"To approve: reprokit baseline approve FINGERPRINT --cell {baseline.cell}"
    )
    known = sorted({approval.fingerprint.class_key for approval in baseline.approvals})
    diagnosis = Diagnosis(
        class_=None, caused_by_change="possible", first_stage=None, operators=[], reason=reason
    )
    warnings = [f"approved are: {', '.join(known)}"]
    warnings += [
        fault for stage in by_name(head, "head").values() if stage.sha256 for fault in intrinsic_faults(stage)
    ]
    return seal(None, head, refused("no_baseline", required, reason), diagnosis, warnings, [])
