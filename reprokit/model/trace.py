"""Stages of a probe and the metrics it measured: what a fingerprint says about numbers."""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Number = float | Literal["float:nan", "float:inf", "float:-inf"]
END = r"$(?!\n)"  # in Python, unlike in JSON Schema, `$` alone also matches before a last line break
Sha256 = Annotated[str, Meta(pattern=rf"^sha256:[0-9a-f]{{64}}{END}")]
Text = Annotated[str, Meta(max_length=500)]
Word = Annotated[str, Meta(max_length=32)]
# What arithmetic touches: a float holds every whole number up to here.
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Name = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9_.\-]*{END}", max_length=120)]
Operator = Literal[
    "rng", "data", "gemm", "conv", "reduction", "softmax", "norm", "attention", "gather", "scatter", "sort",
    "elementwise", "quantize", "collective", "metric",
]  # fmt: skip


class Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Base of every structure in a document: unknown keys are refused."""


class Sketch(Document):
    """A numeric summary small enough to keep, from which the difference of two runs is estimated."""

    numel: Annotated[Whole, Meta(description="Number of elements of the tensor.")]
    norm: Annotated[Number, Meta(description="Euclidean norm over the finite elements.")]
    minimum: Annotated[Number | None, Meta(description="Smallest finite element; null when there is none.")]
    maximum: Annotated[Number | None, Meta(description="Largest finite element; null when there is none.")]
    nan: Annotated[Whole, Meta(description="How many elements are NaN.")]
    infinite: Annotated[Whole, Meta(description="How many elements are infinite.")]
    samples: Annotated[
        list[Number],
        Meta(
            description="Elements at fixed positions; the whole tensor, in order, where it has at most 64.",
            max_length=64,
        ),
    ]
    buckets: Annotated[
        list[float],
        Meta(
            description="CountSketch of the finite elements: 64 sums with hashed signs; empty where samples are all.",
            max_length=64,
        ),
    ]


class Bound(Document):
    """How far a result is from a float64 reference, in units of its a-priori error bound."""

    ratio: Annotated[Number, Meta(description="Largest error divided by its bound, to three digits.")]
    holds: Annotated[bool, Meta(description="Whether no element exceeds its bound.")]


class Control(Document):
    """What showed that a sensitive stage can move on this machine."""

    change: Annotated[
        str, Meta(description="What was changed, such as the order of a reduction.", max_length=200)
    ]
    moved: Annotated[bool, Meta(description="Whether the hash moved; if not, the stage is blind.")]
    flipped: Annotated[
        Whole | None,
        Meta(description="Quantised codes that flipped under the change; null where nothing is quantised."),
    ]


class Invariance(Document):
    """A stage's result held against that of another way to compute the same numbers."""

    reference: Annotated[Name, Meta(description="Stage that computes the same numbers in another way.")]
    equal: Annotated[bool, Meta(description="Whether all elements are equal.")]
    largest: Annotated[Number, Meta(description="Largest absolute difference of two elements.")]


class Stage(Document, omit_defaults=True, kw_only=True):
    """One named, versioned step of the probe.

    Keys with a default came later than the first baselines and are left out where they say nothing, so that a
    document approved before keeps its digest.
    """

    name: Annotated[Name, Meta(description="Name of the stage, such as `layer0.attention.fp32`.")]
    version: Annotated[Positive, Meta(description="Raised when the hash changes on an unchanged machine.")]
    operator: Annotated[Operator, Meta(description="Operator class.")]
    kind: Annotated[
        Literal["invariant", "sensitive"],
        Meta(
            description="invariant: a known answer on every correct machine; sensitive: another kernel moves it."
        ),
    ]
    state: Annotated[
        Literal["ok", "unavailable", "unstable", "blind"],
        Meta(
            description="unstable: repeats differed; blind: its control did not move it; unavailable: see reason."
        ),
    ]
    reason: Annotated[Text | None, Meta(description="Why the state is not ok.")]
    inputs: Annotated[list[Name], Meta(description="Stages whose results this one consumes.", max_length=64)]
    dtype: Annotated[Word | None, Meta(description="Element type of the result.")]
    shape: Annotated[
        Annotated[list[Whole], Meta(max_length=64)] | None, Meta(description="Shape of the result.")
    ]
    sha256: Annotated[
        Sha256 | None,
        Meta(description="Hash over dtype, shape and little-endian bytes; null when unavailable."),
    ]
    expected: Annotated[Sha256 | None, Meta(description="The known answer of an invariant stage.")]
    sketch: Annotated[
        Sketch | None,
        Meta(description="Numeric summary; null of an empty tensor, and where the known answer was given."),
    ]
    bound: Annotated[
        Bound | None, Meta(description="Result against the float64 reference; null without one.")
    ]
    control: Annotated[
        Control | None, Meta(description="Whether the stage can move; null for invariant stages.")
    ]
    races: Annotated[
        Text | None,
        Meta(description="Operator in it that torch documents as nondeterministic on this device."),
    ] = None
    invariance: Annotated[
        Invariance | None, Meta(description="Whether another way to compute the same numbers gives them.")
    ] = None
    kernels: Annotated[
        Annotated[list[Annotated[str, Meta(max_length=300)]], Meta(max_length=64)] | None,
        Meta(description="GPU kernels that ran, seen in a profiled process of its own."),
    ] = None


class Metric(Document):
    """One measured quality over several seeds."""

    name: Annotated[Name, Meta(description="Name of the metric, such as `digits.accuracy`.")]
    direction: Annotated[Literal["higher", "lower"], Meta(description="Which way is better.")]
    values: Annotated[
        list[Number], Meta(description="One value for each of `seeds.metrics`, in that order.", min_length=1)
    ]
    mean: Annotated[Number, Meta(description="Arithmetic mean over the seeds.")]
    deviation: Annotated[
        Number, Meta(description="Sample standard deviation (n − 1) over the seeds; 0 for one seed.")
    ]


def figure(value: Number, digits: int = 2) -> str:
    """A number for reading, also where it is not finite."""
    number = float(value.removeprefix("float:")) if isinstance(value, str) else value
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "∞" if number > 0 else "−∞"
    return f"{number:.{digits}g}"
