"""The invariance map of a comparison: what gives the same numbers in whichever way they are computed.

Stages `batch.OPERATOR.CONDITION.DTYPE` make a table of operators and conditions; every other stage that is held
against another one is a pair.
"""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.model.comparison import Comparison, StageInvariance
from reprokit.model.trace import Number
from reprokit.report.wording import figure

EQUAL = "="
MOST_OPERATORS, MOST_CONDITIONS = 50, 20  # a document from outside can name thousands
Row = tuple[str, ...]


def batch_table(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of operator × condition: `=` or the largest difference; no rows where nothing was measured."""
    found = {place: held for name, held in _held(comparison) if (place := _batch(name))}
    operators = list(dict.fromkeys((operator, dtype) for operator, _, dtype in found))[:MOST_OPERATORS]
    conditions = list(dict.fromkeys(condition for _, condition, _ in found))[:MOST_CONDITIONS]
    rows: list[Row] = []
    for operator, dtype in operators:
        cells = (found.get((operator, condition, dtype)) for condition in conditions)
        rows.append((f"{operator} {dtype}", *("" if held is None else _cell(held) for held in cells)))
    return ("operator", *(condition.replace("_", " ") for condition in conditions)), rows


def pair_table(comparison: Comparison) -> tuple[Row, list[Row]]:
    """Head and rows of every other stage that is held against another: `=` or the largest difference."""
    rows: list[Row] = [
        (name, held.reference, _cell(held)) for name, held in _held(comparison) if not _batch(name)
    ]
    return ("stage", "held against", "largest difference"), rows


def _held(comparison: Comparison) -> Iterator[tuple[str, StageInvariance]]:
    return ((stage.name, stage.invariance) for stage in comparison.stages if stage.invariance is not None)


def _batch(name: str) -> tuple[str, str, str] | None:
    """Operator, condition and dtype of a stage of the part `batch`."""
    parts = name.split(".")
    return (parts[1], parts[2], parts[3]) if parts[0] == "batch" and len(parts) == 4 else None


def _cell(held: StageInvariance) -> str:
    """The head's difference, and the base's where that is another."""
    old, new = (_difference(value) for value in (held.base, held.head))
    return new if old in (new, "–") else f"{old} → {new}"


def _difference(value: Number | None) -> str:
    return EQUAL if value == 0 else figure(value)
