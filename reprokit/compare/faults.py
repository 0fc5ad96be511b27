"""What is wrong with a fingerprint by itself: no baseline is needed to see it, and none may approve it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reprokit.model.canonical import number
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.trace import Stage, figure


def missed(stage: Stage) -> bool:
    """Whether a stage has a known answer and gave another one."""
    return stage.expected is not None and stage.sha256 is not None and stage.sha256 != stage.expected


def intrinsic_faults(stage: Stage) -> Iterator[str]:
    """A missed known answer, one that is unstable, a broken bound."""
    if missed(stage):
        yield f"{stage.name} misses its known answer"
    if stage.kind == "invariant" and stage.state == "unstable":
        yield f"{stage.name} is a known answer and unstable"
    # the ratio is the evidence: a flag that contradicts it is not believed
    if stage.bound is not None and not (stage.bound.holds and number(stage.bound.ratio) <= 1.0):
        yield f"{stage.name} breaks its bound: its error is {figure(stage.bound.ratio, 3)} times what rounding allows"


def unapprovable(fingerprint: Fingerprint) -> str | None:
    """What keeps a fingerprint from being a baseline, or None: nobody can be held to numbers that are wrong."""
    for stage in fingerprint.stages:
        if stage.state == "unstable":
            return f"{stage.name} is unstable: {stage.reason or 'its repeats differ'}"
        for fault in intrinsic_faults(stage):
            return fault
    for metric in fingerprint.metrics:
        if not all(math.isfinite(number(value)) for value in metric.values):
            return f"metric {metric.name} has a value that is not finite"
    return None
