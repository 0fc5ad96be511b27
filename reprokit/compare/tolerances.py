"""What level `process` allows each stage: measured jitter of legitimate variants times a safety factor.

The measurements stand in `measured.py`, written by `bin/measure-tolerances`. Set by argument instead, each where it
stands: the caps and `PAIRED`. Known answers, copies, orders and random integers have no jitter and must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from reprokit.compare import measured
from reprokit.model.trace import Stage

FACTOR = 8
# A stage of these classes copies, orders, draws or stores: on a correct machine there is nothing to round.
EXACT = frozenset({"rng", "data", "gather", "sort"})
WRONG_FORMULA = 1.7e-4  # GELU by its tanh approximation against the exact one, relative L2
CAPS = {"float32": WRONG_FORMULA / 4, "float64": WRONG_FORMULA / 4}
ACCUMULATED_CAP = (
    0.05  # whatever was measured, values in the model and logits further off than this are wrong
)
SHARE_CAP = (
    1.0  # one flip flips a quarter of the codes behind it: they are counted, the values around them held
)
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Classes that no single-process variant can measure borrow from the one whose rounding they share.
BORROWED = {"collective": "reduction"}
# What a metric may move for one seed, relative: two of the 360 images it is measured on. One that is classified
# otherwise moves an accuracy of 0.91 by 1 / 360 / 0.91 = 0.0031.
PAIRED = 2 / 360
# Stages that share a measurement: pattern of names, subject of the measurement; others have one by their name. In the
# model errors accumulate, and behind a quantiser the smallest jitter becomes, at a tie, one flipped code and so a
# whole step.
PATTERNS = (
    ("*.codes.fp8", "*.codes.fp8"),
    ("*.fp8", "*.fp8"),
    *(
        (f"{place}.{variant}", f"*.{variant}")
        for variant in ("fp32", "bf16", "fp16")
        for place in ("layer*", "final_norm", "logits")
    ),
    ("batch.logits.*", "batch.logits.*"),
    ("batch.prefill.*", "batch.logits.*"),
    ("sampling.*.margins", "sampling.greedy.margins"),
    ("training.gradients.*", "training.gradients.*"),
    ("collective.gradients.*", "training.gradients.*"),
    ("metrics.*.losses", "metrics.digits.losses"),
    ("rng.*_normal*", "rng.*_normal*"),
)


@dataclass(frozen=True)
class Tolerance:
    """Largest distance at level `process` and where it comes from.

    `value` is a relative L2 distance, for quantised codes the largest share that may flip.
    """

    value: float
    origin: str


def tolerance(stage: Stage) -> Tolerance | None:
    """What a stage may move at level `process`; None: it must be equal, or nothing is known of its kind."""
    if stage.kind == "invariant" or stage.dtype is None:
        return None
    found = _of_name(stage.name, stage.dtype)
    if found is None and stage.operator not in EXACT:
        found = _of_operator(stage.operator, stage.dtype)
    return found


def _of_name(name: str, dtype: str) -> Tolerance | None:
    if name.startswith("kernel."):
        return None
    own = (
        () if name.startswith("metrics.") else ((name, name),)
    )  # a metric counts images, which jitter moves at once
    for pattern, subject in (*own, *PATTERNS):
        if (subject, dtype) in _MEASURED and fnmatchcase(name, pattern):
            return _from_measurement(subject, dtype, SHARE_CAP if dtype == "uint8" else ACCUMULATED_CAP)
    return None


def _of_operator(operator: str, dtype: str) -> Tolerance | None:
    if operator == "metric":
        return Tolerance(PAIRED, "two images of 360 that are classified otherwise")
    operator = BORROWED.get(operator, operator)
    if found := _from_measurement(operator, dtype, CAPS.get(dtype, ACCUMULATED_CAP)):
        return found
    single = _MEASURED.get((operator, "float32"))
    if single is None or dtype not in UNIT_ROUNDOFF:
        return None
    ratio = UNIT_ROUNDOFF[dtype] / UNIT_ROUNDOFF["float32"]
    origin = f"{operator} in float32, scaled by the unit roundoff of {dtype}"
    return _capped(single[0] * FACTOR * ratio, CAPS.get(dtype, ACCUMULATED_CAP), origin)


def _from_measurement(subject: str, dtype: str, cap: float) -> Tolerance | None:
    if (subject, dtype) not in _MEASURED:
        return None
    largest, variant = _MEASURED[subject, dtype]
    origin = f"{FACTOR} × {largest:.2g}, the most that a legitimate variant moved it ({variant}; {measured.ORIGIN})"
    return _capped(largest * FACTOR, cap, origin)


def _capped(value: float, cap: float, origin: str) -> Tolerance | None:
    value = rounded_up(value)
    if value > cap:
        return Tolerance(cap, f"{origin}; capped at {cap:.2g}")
    return Tolerance(value, origin) if value else None


def rounded_up(value: float) -> float:
    """`value` rounded up to one significant digit; 0 stays 0."""
    if value <= 0:
        return 0.0
    exponent = math.floor(math.log10(value))
    digit = math.ceil(float(f"{value:.9e}".partition("e")[0]))
    return float(f"{digit}e{exponent}")


_MEASURED = {(subject, dtype): (largest, variant) for subject, dtype, largest, variant in measured.MEASURED}
