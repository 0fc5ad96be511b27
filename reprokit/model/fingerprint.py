"""The fingerprint: what one machine is and which numbers it produced."""

from typing import Annotated, Literal

from msgspec import Meta

from reprokit.model.environment import Environment, Run
from reprokit.model.trace import Document, Metric, Name, Sha256, Stage

PROFILES = ("quick", "full")
DEVICES = ("cpu", "cuda")
MAX_SEED = 2**32 - 16  # NumPy takes 32 bits, and the metrics count on from the base seed


class Probe(Document):
    """Which workload ran, and how."""

    name: Annotated[Name, Meta(description="Name of the probe; `lfq` is the built-in one.")]
    version: Annotated[int, Meta(description="Version of the probe's set of stages.", ge=1)]
    profile: Annotated[
        Literal["quick", "full"], Meta(description="quick: a subset of the stages; full: all.")
    ]
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device the probe ran on.")]
    mode: Annotated[
        Literal["default", "strict"], Meta(description="default: as users run; strict: every switch on.")
    ]
    repeats: Annotated[int, Meta(description="Runs within one process.", ge=1)]
    fresh: Annotated[int, Meta(description="Further runs, each in a process of its own.", ge=0)]


class Seeds(Document):
    """Seeds are an experiment's parameters, kept apart from the environment."""

    base: Annotated[int, Meta(description="Seed of the random stages.", ge=0, le=MAX_SEED)]
    metrics: Annotated[list[int], Meta(description="Seeds of the trained task, one per value of a metric.")]


class Part(Document):
    """What one part of the probe cost."""

    name: Annotated[str, Meta(description="Part of the probe.", max_length=40)]
    seconds: Annotated[float, Meta(description="Wall time of all repeats in the main process.", ge=0)]


class ProbeRun(Run):
    """What may differ between two equal runs of the probe."""

    seconds: Annotated[
        float, Meta(description="Wall time of the probe from its start, imports included.", ge=0)
    ]
    parts: Annotated[list[Part], Meta(description="Cost of each part.", max_length=64)]


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
