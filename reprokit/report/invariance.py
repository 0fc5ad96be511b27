"""The invariance map of a comparison: what gives the same numbers in whichever way they are computed.

Stages `batch.OPERATOR.CONDITION.DTYPE` make a table of operators and conditions; every other stage that is held
against another one is a pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.model.comparison import Comparison, StageComparison, StageInvariance
from reprokit.model.trace import Number
from reprokit.report.wording import figure

EQUAL = "="
Row = tuple[str, ...]


def batch_table(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of operator × condition: `=` or the largest difference; no rows where nothing was measured."""
    found = {name: stage for stage in _held(comparison) if (name := _batch(stage.name))}
    operators = list(dict.fromkeys((operator, dtype) for operator, _, dtype in found))
    conditions = list(dict.fromkeys(condition for _, condition, _ in found))
    rows = []
    for operator, dtype in operators:
        cells = (found.get((operator, condition, dtype)) for condition in conditions)
        rows.append(
            (f"{operator} {dtype}", *("" if stage is None else _cell(stage.invariance) for stage in cells))
        )
    return ("operator", *(condition.replace("_", " ") for condition in conditions)), rows


def pair_table(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of every other stage that is held against another: `=` or the largest difference."""
    rows = [
        (stage.name, stage.invariance.reference, _cell(stage.invariance))
        for stage in _held(comparison)
        if stage.invariance is not None and not _batch(stage.name)
    ]
    return ("stage", "held against", "largest difference"), rows


def _held(comparison: Comparison) -> Sequence[StageComparison]:
    return [stage for stage in comparison.stages if stage.invariance is not None]


def _batch(name: str) -> tuple[str, str, str] | None:
    """Operator, condition and dtype of a stage of the part `batch`."""
    parts = name.split(".")
    return (parts[1], parts[2], parts[3]) if parts[0] == "batch" and len(parts) == 4 else None


def _cell(invariance: StageInvariance | None) -> str:
    """The head's difference, and the base's where that is another."""
    if invariance is None:
        return ""
    old, new = (_difference(value) for value in (invariance.base, invariance.head))
    return new if old in (new, "–") else f"{old} → {new}"


def _difference(value: Number | None) -> str:
    return EQUAL if value == 0 else figure(value)
