"""Two fingerprints in, one sealed comparison out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from reprokit.compare.diagnosis import Difference, diagnose, evidence
from reprokit.compare.environment import compare_environment
from reprokit.compare.metrics import MetricDiff, compare_metrics
from reprokit.compare.stages import StageDiff, compare_stages
from reprokit.compare.verdict import Judgement, judge, refused
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.comparison import Comparison, Diagnosis, FieldChange, Level, Side
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.trace import Metric

UNSEALED = "sha256:" + "0" * 64
COMPARABLE = ("name", "profile", "device", "mode")  # fields of `probe` that must agree
_MOST_NAMES = 5


def compare_fingerprints(
    base: Fingerprint, head: Fingerprint, required: Level = "bit", side: Side | None = None
) -> Comparison:
    """The sealed comparison of two fingerprints; `side` describes the base where it is a baseline's approval.

    Raises:
        InvalidInput: a trace contradicts itself.
    """
    side = side or fingerprint_side(base)
    if problem := incomparable(base, head):
        changes = compare_environment(base, head, ())
        reason = f"Not comparable: {problem}."
        return seal(side, head, refused("invalid", required, reason), _undecided(reason), [], changes)
    stages = compare_stages(base, head)
    seeds_differ = base.seeds != head.seeds
    for name, fingerprint in (("base", base), ("head", head)):
        _refuse_twins(name, fingerprint.metrics)
    metrics = compare_metrics(base.metrics, head.metrics, same_seeds=not seeds_differ)
    changes = compare_environment(base, head, evidence(stages))
    judgement = judge(stages, metrics, (base.seeds.base, head.seeds.base) if seeds_differ else None, required)
    diagnosis = diagnose(Difference(stages, metrics, changes, seeds_differ))
    warnings = _warnings(base, head, stages, metrics)
    return seal(side, head, judgement, diagnosis, warnings, changes, stages, metrics)


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
    base: Side | None,
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


def _refuse_twins(side: str, metrics: list[Metric]) -> None:
    names = [metric.name for metric in metrics]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{side}: /metrics: two metrics are called {twice}")


def _warnings(
    base: Fingerprint, head: Fingerprint, stages: Sequence[StageDiff], metrics: Sequence[MetricDiff]
) -> list[str]:
    """What a reviewer must know though it does not fail."""
    warnings = list(chain.from_iterable(metric.warnings for metric in metrics))
    if base.class_key != head.class_key:
        warnings.append(f"the hardware is of another class: {base.class_key} and {head.class_key}")
    blind = [stage for stage in stages if stage.comparison.state == "blind"]
    groups = {
        "blind in the head though not in the base, so that they no longer count": [
            stage.name for stage in blind if stage.base and stage.base.state != "blind"
        ],
        "blind and differ, which is shown and counts for no level": [
            stage.name for stage in blind if stage.comparison.equal is False
        ],
        "new: nothing is approved for them": [
            stage.name for stage in stages if stage.comparison.state == "new"
        ],
        "unstable and new": [
            stage.name
            for stage in stages
            if stage.comparison.state == "new" and stage.head and stage.head.state == "unstable"
        ],
    }
    for words, names in groups.items():
        if names:
            shown = ", ".join(names[:_MOST_NAMES]) + (
                f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            )
            warnings.append(f"{len(names)} stage{'s are' if len(names) > 1 else ' is'} {words}: {shown}")
    if head.source.dirty:
        warnings.append("the head was measured with uncommitted changes")
    return warnings
