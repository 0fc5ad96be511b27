"""The fingerprint: what one machine is and which numbers it produced."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from reprokit.model.environment import Environment, Run
from reprokit.model.trace import Document, Metric, Name, Positive, Sha256, Stage, Whole

MAX_SEED = 2**32 - 16  # NumPy takes 32 bits, and the metrics count on from the base seed


class Probe(Document, omit_defaults=True, kw_only=True):
    """Which workload ran, and how; keys with a default came later than the first baselines."""

    name: Annotated[Name, Meta(description="Name of the probe; `lfq` is the built-in one.")]
    version: Annotated[Positive, Meta(description="Version of the probe's set of stages.")]
    profile: Annotated[
        Literal["quick", "full"], Meta(description="quick: a subset of the stages; full: all.")
    ]
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device the probe ran on.")]
    mode: Annotated[
        Literal["default", "strict"], Meta(description="default: as users run; strict: every switch on.")
    ]
    repeats: Annotated[Positive, Meta(description="Runs within one process.")]
    loaded: Annotated[
        Whole, Meta(description="Further runs in it, while other work kept the machine busy.")
    ] = 0
    fresh: Annotated[Whole, Meta(description="Further runs, each in a process of its own.")]


class Seeds(Document):
    """Seeds are an experiment's parameters, kept apart from the environment."""

    base: Annotated[int, Meta(description="Seed of the random stages.", ge=0, le=MAX_SEED)]
    metrics: Annotated[list[Whole], Meta(description="Seeds of the trained task, one per value of a metric.")]


class Part(Document):
    """What one part of the probe cost."""

    name: Annotated[str, Meta(description="Part of the probe.", max_length=40)]
    seconds: Annotated[float, Meta(description="Wall time of all repeats in the main process.", ge=0)]


class ModeCost(Document):
    """The same work with and without the switches of the mode strict, in turn in one process."""

    default_seconds: Annotated[float, Meta(description="Median without them.", ge=0)]
    strict_seconds: Annotated[float, Meta(description="Median with them.", ge=0)]


class ProbeRun(Run):
    """What may differ between two equal runs of the probe."""

    seconds: Annotated[
        float, Meta(description="Wall time of the probe from its start, imports included.", ge=0)
    ]
    parts: Annotated[list[Part], Meta(description="Cost of each part.", max_length=64)]
    peak_memory_bytes: Annotated[
        Whole | None, Meta(description="Most memory that the recording process had in use.")
    ] = None
    mode_cost: Annotated[
        ModeCost | None, Meta(description="What the mode strict costs in time; null in the mode default.")
    ] = None


class Fingerprint(Environment):
    """Environment, inputs, stages and metrics of one cell."""

    document: Annotated[Literal["fingerprint"], Meta(description="Type of this document.")]
    schema_version: Annotated[Literal[1], Meta(description="Version of this document's schema.")]
    digest: Annotated[Sha256, Meta(description="Hash of the canonical content without `digest` and `run`.")]
    class_key: Annotated[
        str,
        Meta(description="What the hardware was measured to be, and the mode.", min_length=1, max_length=300),
    ]
    probe: Annotated[Probe, Meta(description="Which workload ran, and how.")]
    seeds: Annotated[Seeds, Meta(description="Seeds of the random stages.")]
    logit_hash: Annotated[
        Sha256 | None, Meta(description="Hash of the `logits` stage; null when unavailable.")
    ]
    stages: Annotated[
        list[Stage],
        Meta(description="The trace: stages in the order in which they ran.", min_length=1, max_length=5000),
    ]
    metrics: Annotated[list[Metric], Meta(description="Metrics over the seeds.", max_length=200)]
    run: Annotated[ProbeRun, Meta(description="What may differ between two equal runs.")]


def hardware(fingerprint: Fingerprint) -> str:
    """The class key without the mode."""
    return fingerprint.class_key.removesuffix(f", mode {fingerprint.probe.mode}")


def contradictions(fingerprint: Fingerprint) -> Iterator[str]:
    """Where a fingerprint contradicts itself, though its schema and digest are right: JSON pointer and problem."""
    for section, items in (("stages", fingerprint.stages), ("metrics", fingerprint.metrics)):
        yield from _twins(section, items)
    logits = next((stage.sha256 for stage in fingerprint.stages if stage.name == "logits"), None)
    if logits != fingerprint.logit_hash:
        yield "/logit_hash: expected the hash of the stage `logits`, found another one"
    for index, stage in enumerate(fingerprint.stages):
        yield from (f"/stages/{index}/{problem}" for problem in _false_state(stage))
    seeds = len(fingerprint.seeds.metrics)
    for index, metric in enumerate(fingerprint.metrics):
        if len(metric.values) != seeds:
            yield f"/metrics/{index}/values: expected one for each of {seeds} seeds, found {len(metric.values)}"


def _false_state(stage: Stage) -> Iterator[str]:
    """Where the state of a stage is not what its hash and its control say."""
    if (stage.sha256 is None) != (stage.state == "unavailable"):
        found = "none" if stage.sha256 is None else "one"
        yield f"sha256: expected a hash exactly where the stage is available, found {found} in state {stage.state}"
    moved = None if stage.control is None else stage.control.moved
    if (stage.state, moved) in (("blind", True), ("ok", False)):
        yield f"state: expected blind exactly where the control did not move, found {stage.state}"


def _twins(section: str, items: Sequence[Stage | Metric]) -> Iterator[str]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        if item.name in seen:
            yield f"/{section}/{index}/name: two {section} are called {item.name}"
        seen.add(item.name)
