"""Two fingerprints in, one sealed comparison out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from reprokit.compare.diagnosis import Difference, diagnose, evidence, names
from reprokit.compare.environment import compare_environment
from reprokit.compare.faults import unapprovable
from reprokit.compare.metrics import MetricDiff, compare_metrics
from reprokit.compare.stages import StageDiff, compare_stages
from reprokit.compare.verdict import Judgement, judge, refused
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.comparison import Comparison, Diagnosis, FieldChange, Level, Side
from reprokit.model.fingerprint import Fingerprint, contradictions

UNSEALED = "sha256:" + "0" * 64
COMPARABLE = ("name", "profile", "device", "mode")  # fields of `probe` that must agree


def compare_fingerprints(
    base: Fingerprint, head: Fingerprint, required: Level = "bit", side: Side | None = None
) -> Comparison:
    """The sealed comparison of two fingerprints; `side` describes the base where it is a baseline's approval.

    Raises:
        InvalidInput: one of them contradicts itself.
    """
    refuse_contradictions(base, "base")
    refuse_contradictions(head, "head")
    side = side or fingerprint_side(base)
    if problem := incomparable(base, head):
        changes = compare_environment(base, head, ())
        reason = f"Not comparable: {problem}."
        return seal(side, head, refused("invalid", required, reason), _undecided(reason), [], changes)
    stages = compare_stages(base, head)
    seeds_differ = base.seeds != head.seeds
    metrics = compare_metrics(base.metrics, head.metrics, same_seeds=not seeds_differ)
    changes = compare_environment(base, head, evidence(stages))
    judgement = judge(stages, metrics, (base.seeds.base, head.seeds.base) if seeds_differ else None, required)
    difference = Difference(stages, metrics, changes, seeds_differ)
    warnings = _warnings(base, head, difference)
    return seal(side, head, judgement, diagnose(difference), warnings, changes, stages, metrics)


def refuse_contradictions(fingerprint: Fingerprint, name: str) -> None:
    """Nothing, where a fingerprint does not contradict itself.

    Raises:
        InvalidInput: it does; `name` says whose it is.
    """
    for problem in contradictions(fingerprint):
        raise InvalidInput(f"{name}: {problem}")


def incomparable(base: Fingerprint, head: Fingerprint) -> str | None:
    """Why two fingerprints say nothing about each other, or None."""
    for key in COMPARABLE:
        old, new = getattr(base.probe, key), getattr(head.probe, key)
        if old != new:
            return f"the base's probe has {key} {old}, the head's {new}"
    return None


def fingerprint_side(fingerprint: Fingerprint) -> Side:
    """How a fingerprint by itself stands in a comparison."""
    return Side(
        source="fingerprint",
        cell=None,
        approval=None,
        exact=None,
        digest=fingerprint.digest,
        class_key=fingerprint.class_key,
        logit_hash=fingerprint.logit_hash,
    )


def seal(
    base: Side,
    head: Fingerprint,
    judgement: Judgement,
    diagnosis: Diagnosis,
    warnings: list[str],
    changes: list[FieldChange],
    stages: Sequence[StageDiff] = (),
    metrics: Sequence[MetricDiff] = (),
) -> Comparison:
    """A comparison with the digest of its content."""
    draft = Comparison(
        document="comparison",
        schema_version=1,
        digest=UNSEALED,
        base=base,
        head=fingerprint_side(head),
        unapprovable=unapprovable(head),
        verdict=judgement.verdict,
        levels=judgement.levels,
        diagnosis=diagnosis,
        warnings=warnings,
        stages=[stage.comparison for stage in stages],
        environment=changes,
        metrics=[metric.comparison for metric in metrics],
    )
    return reseal(draft)


def reseal(comparison: Comparison) -> Comparison:
    """`comparison` with the digest that its content has."""
    document = canonical.sealed(canonical.tagged(msgspec.to_builtins(comparison)))
    return msgspec.convert(document, Comparison)


def _undecided(reason: str) -> Diagnosis:
    return Diagnosis(class_=None, caused_by_change="possible", first_stage=None, operators=[], reason=reason)


def _warnings(base: Fingerprint, head: Fingerprint, found: Difference) -> list[str]:
    """What a reviewer must know though it does not fail."""
    warnings = list(chain.from_iterable(metric.warnings for metric in found.metrics))
    if base.class_key != head.class_key:
        warnings.append(f"the hardware is of another class: {base.class_key} and {head.class_key}")
    if base.probe.version != head.probe.version:
        warnings.append(f"the probe is of another version: {base.probe.version} and {head.probe.version}")
    if base.run.detail != head.run.detail:
        warnings.append("only one side was recorded with --detail full: what that adds is not compared")
    new = [stage for stage in found.stages if stage.comparison.state == "new"]
    lost = [stage for stage in found.stages if _lost_invariance(stage)]
    groups = {
        "{stages} {are} no longer what another way to compute {them} gives": lost,
        "{stages} counted in the base and {are} blind in the head": [
            stage
            for stage in found.stages
            if stage.comparison.state == "blind" and stage.base and stage.base.state != "blind"
        ],
        "{stages} {are} new: nothing is approved for {them}": new,
        "{stages} {are} unstable and new": [
            stage for stage in new if stage.head and stage.head.state == "unstable"
        ],
    }
    if found.blind and not found.anything:
        warnings.append(f"only blind stages differ: {names(found.blind)}")
    elif found.blind:
        groups = {"blind {stages} {differ}, which proves nothing": found.blind, **groups}
    for words, stages in groups.items():
        if stages:
            warnings.append(_counted(words, stages))
    if head.source.dirty:
        warnings.append("the head was measured with uncommitted changes")
    return warnings


def _lost_invariance(stage: StageDiff) -> bool:
    """Whether a stage equalled in the base what it is held against, and does not in the head."""
    both = stage.comparison.invariance
    return both is not None and both.base == 0 and both.head not in (None, 0)


def _counted(words: str, stages: Sequence[StageDiff]) -> str:
    """How many stages, what of them, and which."""
    if len(stages) == 1:
        words = words.format(stages="stage", are="is", differ="differs", them="it")
    else:
        words = words.format(stages="stages", are="are", differ="differ", them="them")
    return f"{len(stages)} {words}: {names(stages)}"
