"""The comparison: what changed between two fingerprints, at which level they agree, and why."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from reprokit.model.trace import Document, Name, Number, Operator, Sha256

Level = Literal["bit", "process", "conclusion"]
LEVELS: tuple[Level, ...] = ("bit", "process", "conclusion")  # the strictest first
DiagnosisClass = Literal[
    "data", "weights", "code", "environment", "logic", "nondeterministic-kernel", "statistical", "unexplained"
]


class Side(Document):
    """One of the two fingerprints."""

    source: Annotated[Literal["fingerprint", "baseline"], Meta(description="Kind of document it came from.")]
    cell: Annotated[Name | None, Meta(description="Cell of the baseline; null for a fingerprint.")]
    approval: Annotated[
        int | None,
        Meta(
            description="Index into the baseline's approvals; null for a fingerprint, and where none is comparable."
        ),
    ]
    exact: Annotated[
        bool | None,
        Meta(description="Whether that approval matched; false: the nearest one; null for a fingerprint."),
    ]
    digest: Annotated[Sha256 | None, Meta(description="Digest of the fingerprint; null where there is none.")]
    class_key: Annotated[
        Annotated[str, Meta(max_length=300)] | None,
        Meta(
            description="What the hardware was measured to be, and the mode; "
            "null: the baseline knows nothing of the head's hardware."
        ),
    ]
    logit_hash: Annotated[Sha256 | None, Meta(description="Hash of the `logits` stage.")]


class Verdict(Document):
    """The strictest level that still holds, and whether that is enough."""

    level: Annotated[
        Literal["bit", "process", "conclusion", "none"], Meta(description="Strictest level that holds.")
    ]
    required: Annotated[Level, Meta(description="Level that was asked for.")]
    holds: Annotated[bool, Meta(description="Whether the required level holds.")]
    state: Annotated[
        Literal["holds", "drifted", "no_baseline", "invalid"],
        Meta(
            description="no_baseline: nothing approved for this hardware or stage; invalid: not comparable."
        ),
    ]


class LevelResult(Document):
    """One level of agreement."""

    level: Annotated[Level, Meta(description="Level of agreement.")]
    holds: Annotated[bool, Meta(description="Whether it holds.")]
    reasons: Annotated[list[str], Meta(description="What breaks it, worst first; empty where it holds.")]


class Check(Document):
    """One place where a difference can come from."""

    cause: Annotated[
        Literal["data", "weights", "code", "environment", "randomness"], Meta(description="The place.")
    ]
    mark: Annotated[
        Literal["cause", "differs", "agrees", "unknown"],
        Meta(
            description="cause: the diagnosis rests on it; differs: not equal, without being the cause that was "
            "found; unknown: nothing about it is recorded."
        ),
    ]
    reason: Annotated[str, Meta(description="What was seen there, in one sentence.")]


class Diagnosis(Document, rename={"class_": "class"}):
    """What kind of difference it is, where it starts and whether the change under review can be its cause."""

    class_: Annotated[
        DiagnosisClass | None, Meta(description="Class of the difference; null where nothing differs.")
    ]
    caused_by_change: Annotated[
        Literal["yes", "no", "possible"],
        Meta(description="Whether the change under review can have caused it."),
    ]
    first_stage: Annotated[Name | None, Meta(description="First diverging stage in the order of the trace.")]
    operators: Annotated[
        list[Operator], Meta(description="Operator classes of the stages that moved of their own accord.")
    ]
    reason: Annotated[str, Meta(description="The diagnosis in one or two sentences.")]
    checklist: Annotated[
        list[Check],
        Meta(description="Every place to search, in the order of search; empty where nothing was compared."),
    ] = []


class StageError(Document):
    """Estimated distance of one stage between the two sides."""

    relative: Annotated[Number, Meta(description="L2 norm of the difference over the base's L2 norm.")]
    uncertainty: Annotated[
        Number, Meta(description="Relative standard error of that estimate; 0 where it is exact.")
    ]
    largest_sampled: Annotated[
        Number, Meta(description="Largest absolute difference among the sampled elements.")
    ]
    flipped: Annotated[
        Number | None, Meta(description="Estimated number of quantised codes that flipped; null elsewhere.")
    ]
    share: Annotated[
        Number | None, Meta(description="Share of the codes that these are; null where nothing is quantised.")
    ]
    tolerance: Annotated[
        float | None,
        Meta(
            description="Largest relative error at level process, for codes the largest share that may flip; "
            "null: must be equal."
        ),
    ]
    within: Annotated[bool, Meta(description="Whether the error is within the tolerance.")]


class StageInvariance(Document):
    """A stage held against the one that computes the same numbers in another way, on both sides."""

    reference: Annotated[Name, Meta(description="The other stage.")]
    base: Annotated[
        Number | None, Meta(description="Largest absolute difference in the base, 0 where all are equal.")
    ]
    head: Annotated[
        Number | None, Meta(description="Largest absolute difference in the head, 0 where all are equal.")
    ]


class StageComparison(Document):
    """One stage on both sides."""

    name: Annotated[Name, Meta(description="Name of the stage.")]
    operator: Annotated[Operator, Meta(description="Operator class.")]
    kind: Annotated[Literal["invariant", "sensitive"], Meta(description="Kind of stage.")]
    state: Annotated[
        Literal["ok", "unavailable", "unstable", "blind", "new", "gone", "other_version"],
        Meta(description="State of the stage over both sides; gone: the base has it and the head has not."),
    ]
    equal: Annotated[
        bool | None, Meta(description="Whether the hashes are equal; null where one side has none.")
    ]
    difference: Annotated[
        Literal["drifted", "unapproved", "blind"] | None,
        Meta(
            description="drifted: another result, repeats that differ, or gone; unapproved: of another version, or "
            "different only because it follows such a stage; blind: another result that proves nothing; "
            "null: no difference, or nothing to compare."
        ),
    ]
    follows: Annotated[
        bool,
        Meta(description="Whether a stage that it consumes differs already, so that it says nothing new."),
    ]
    error: Annotated[
        StageError | None, Meta(description="Distance of the two sides; null where equal or unknown.")
    ]
    note: Annotated[str | None, Meta(description="What else must be said of this stage.")]
    invariance: Annotated[
        StageInvariance | None,
        Meta(description="Whether it is what another way to compute the same numbers gives."),
    ] = None


class FieldChange(Document):
    """One field of the environment that differs."""

    field: Annotated[str, Meta(description="Dotted path in the fingerprint; a key with a dot in brackets.")]
    base: Annotated[Any, Meta(description="Value in the base; null where it is unset.")]
    head: Annotated[Any, Meta(description="Value in the head; null where it is unset.")]
    relevance: Annotated[
        Literal["likely", "possible", "unlikely"],
        Meta(
            description="likely: known to move the operator classes that moved; possible: can change numbers."
        ),
    ]
    external: Annotated[
        bool, Meta(description="Whether it belongs to the machine, out of reach of the change under review.")
    ]
    reason: Annotated[str, Meta(description="Why it has that relevance.")]


class MetricComparison(Document):
    """One metric on both sides against its band."""

    name: Annotated[Name, Meta(description="Name of the metric.")]
    direction: Annotated[Literal["higher", "lower"], Meta(description="Which way is better.")]
    base: Annotated[Number | None, Meta(description="Mean in the base; null where it is missing.")]
    head: Annotated[Number | None, Meta(description="Mean in the head; null where it is missing.")]
    deviation: Annotated[
        Number | None, Meta(description="Sample standard deviation of the base over its seeds.")
    ]
    low: Annotated[
        Number | None,
        Meta(description="Lower end of the band for the head's mean; null: open or not calibrated."),
    ]
    high: Annotated[
        Number | None,
        Meta(description="Upper end of the band for the head's mean; null: open or not calibrated."),
    ]
    equal: Annotated[bool, Meta(description="Whether all values are equal.")]
    state: Annotated[
        Literal["holds", "warns", "fails", "missing", "new"],
        Meta(description="warns: beyond two deviations, still within the band."),
    ]


class Comparison(Document):
    """What changed between two fingerprints, at which level they agree, and why."""

    document: Annotated[Literal["comparison"], Meta(description="Type of this document.")]
    schema_version: Annotated[Literal[1], Meta(description="Version of this document's schema.")]
    digest: Annotated[Sha256, Meta(description="Hash of the canonical content without `digest` and `run`.")]
    base: Annotated[
        Side, Meta(description="What was compared with, or the baseline where nothing in it is comparable.")
    ]
    head: Annotated[Side, Meta(description="What was measured now.")]
    unapprovable: Annotated[
        str | None, Meta(description="What keeps the head from being approved; null: nothing does.")
    ]
    verdict: Annotated[Verdict, Meta(description="The verdict.")]
    levels: Annotated[list[LevelResult], Meta(description="Each level, the strictest first.")]
    diagnosis: Annotated[Diagnosis, Meta(description="The diagnosis.")]
    warnings: Annotated[list[str], Meta(description="What a reviewer must know though it does not fail.")]
    stages: Annotated[list[StageComparison], Meta(description="Every stage, in the order of the trace.")]
    environment: Annotated[list[FieldChange], Meta(description="Changed fields, the most relevant first.")]
    metrics: Annotated[list[MetricComparison], Meta(description="Every metric.")]
