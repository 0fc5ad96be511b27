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
LOGITS_CAP = 0.05  # whatever was measured, logits further off than this are wrong
ACCUMULATED_CAP = 0.05
SHARE_CAP = (
    1.0  # one flip flips a quarter of the codes behind it: they are counted, the values around them held
)
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Classes that no single-process variant can measure borrow from the one whose rounding they share.
BORROWED = {"collective": "reduction"}
# What a trained network may move for one seed: a little more than one image of 360 at 0.95 accuracy.
PAIRED = 5e-3
# Stages with a measurement of their own: pattern of names, subject of the measurement. In the model errors
# accumulate, and behind a quantiser the smallest jitter becomes, at a tie, one flipped code and so a whole step.
PATTERNS = (
    ("*.codes.fp8", "*.codes.fp8"),
    ("*.fp8", "*.fp8"),
    ("layer*.fp32", "*.fp32"),
    ("final_norm.fp32", "*.fp32"),
    ("logits.fp32", "*.fp32"),
    ("logits", "logits"),
    ("metrics.*.losses", "metrics.digits.losses"),
    ("rng.*_normal", "rng.*_normal"),
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
    if found is not None and stage.name.split(".")[0] == "logits" and found.value > LOGITS_CAP:
        return Tolerance(LOGITS_CAP, f"{found.origin}; logits are capped at {LOGITS_CAP:g}")
    return found


def _of_name(name: str, dtype: str) -> Tolerance | None:
    if name.startswith("kernel."):
        return None
    for pattern, subject in PATTERNS:
        if fnmatchcase(name, pattern):
            return _from_measurement(subject, dtype, SHARE_CAP if dtype == "uint8" else ACCUMULATED_CAP)
    return None


def _of_operator(operator: str, dtype: str) -> Tolerance | None:
    if operator == "metric":
        return Tolerance(PAIRED, "one image of 360 that is classified otherwise")
    operator = BORROWED.get(operator, operator)
    if found := _from_measurement(operator, dtype, CAPS.get(dtype, ACCUMULATED_CAP)):
        return found
    single = _MEASURED.get((operator, "float32"))
    if single is None or dtype not in UNIT_ROUNDOFF:
        return None
    ratio = UNIT_ROUNDOFF[dtype] / UNIT_ROUNDOFF["float32"]
    value = min(rounded_up(single[0] * FACTOR * ratio), CAPS.get(dtype, ACCUMULATED_CAP))
    return (
        Tolerance(value, f"{operator} in float32, scaled by the unit roundoff of {dtype}") if value else None
    )


def _from_measurement(subject: str, dtype: str, cap: float) -> Tolerance | None:
    if (subject, dtype) not in _MEASURED:
        return None
    largest, variant = _MEASURED[subject, dtype]
    value = min(rounded_up(largest * FACTOR), cap)
    origin = f"{FACTOR} × {largest:.2g}, the most that a legitimate variant moved it ({variant}; {measured.ORIGIN})"
    return Tolerance(value, origin) if value else None


def rounded_up(value: float) -> float:
    """`value` rounded up to one significant digit; 0 stays 0."""
    if value <= 0:
        return 0.0
    exponent = math.floor(math.log10(value))
    digit = math.ceil(float(f"{value:.9e}".partition("e")[0]))
    return float(f"{digit}e{exponent}")


_MEASURED = {(subject, dtype): (largest, variant) for subject, dtype, largest, variant in measured.MEASURED}
