"""A comparison as text for a terminal: shape and words carry the meaning, colour only repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reprokit.model.comparison import Comparison
from reprokit.report import invariance, wording
from reprokit.report.escape import plain, value_text
from reprokit.report.table import table

_UNKNOWN = wording.Origin()
_COLOURS = {"holds": "32", "drifted": "31", "no_baseline": "33", "invalid": "31"}
_VALUE_WIDTH = 36
_REASON_WIDTH = 400


def text(
    comparison: Comparison,
    color: bool = False,
    origin: wording.Origin = _UNKNOWN,
) -> str:
    """The whole report, ending with a line break."""
    title = wording.headline(comparison)
    if color:
        title = f"\x1b[1;{_COLOURS[comparison.verdict.state]}m{title}\x1b[0m"
    lines = [title, plain(wording.sentence(comparison), _REASON_WIDTH)]
    for title, body in (
        (_diagnosis_title(comparison), [f"  {plain(comparison.diagnosis.reason, 2 * _REASON_WIDTH)}"]),
        ("Where to look, in this order", list(_checklist(comparison))),
        ("Levels", list(_levels(comparison))),
        ("Environment", list(_environment(comparison))),
        ("Stages", list(_stages(comparison))),
        ("Metrics", list(_metrics(comparison))),
        ("Invariance (= or the largest difference)", list(_invariance(comparison))),
        ("Warnings", [f"  ! {plain(warning, _REASON_WIDTH)}" for warning in comparison.warnings]),
        ("Next", list(_next(comparison, origin))),
    ):
        if body:
            lines += ["", f"\x1b[1m{title}\x1b[0m" if color else title, *body]
    return "\n".join(lines) + "\n"


def _diagnosis_title(comparison: Comparison) -> str:
    kind = comparison.diagnosis.class_
    return "Diagnosis" if kind is None else f"Diagnosis: {kind}"


def _checklist(comparison: Comparison) -> Iterator[str]:
    if comparison.diagnosis.class_ is None:
        return
    rows = [
        (check.cause, f"{wording.MARKS[check.mark]} {check.mark}", plain(check.reason, _REASON_WIDTH))
        for check in comparison.diagnosis.checklist
    ]
    yield from _table(("place", "", "what was seen"), rows)


def _next(comparison: Comparison, origin: wording.Origin) -> Iterator[str]:
    for words, commands in wording.next_steps(comparison, origin):
        yield f"  {plain(words, _REASON_WIDTH)}{':' if commands else '.'}"
        yield from (f"    {plain(command, _REASON_WIDTH)}" for command in commands)


def _levels(comparison: Comparison) -> Iterator[str]:
    for level in comparison.levels if wording.compared(comparison) else ():
        required = " (required)" if level.level == comparison.verdict.required else ""
        reasons, more = wording.split(level.reasons, wording.MOST_REASONS)
        yield f"  {'✓ holds' if level.holds else '✗ fails'}  {level.level}{required}"
        yield from (f"           {plain(reason, 160)}" for reason in reasons)
        if more:
            yield f"           +{more} more"


def _environment(comparison: Comparison) -> Iterator[str]:
    shown, more = wording.split(comparison.environment, wording.MOST_FIELDS)
    rows = []
    for change in shown:
        old, new = (plain(value_text(value), _VALUE_WIDTH) for value in (change.base, change.head))
        where = "machine" if change.external else ""
        rows.append(
            (plain(change.field, 60), f"{old} → {new}", change.relevance, where, plain(change.reason))
        )
    yield from _table(("field", "base → head", "relevance", "", "why"), rows)
    if more:
        yield f"  +{more} more"


def _stages(comparison: Comparison) -> Iterator[str]:
    notable = wording.notable_stages(comparison)
    kernels = sum(stage.name.startswith("kernel.") for stage in notable)  # all shown: they say what moved
    shown, more = wording.split(notable, max(wording.MOST_STAGES, kernels + 1))
    first = comparison.diagnosis.first_stage
    rows = []
    for stage in shown:
        mark = "first" if stage.name == first else "follows" if stage.follows else ""
        rows.append(
            (
                plain(stage.name, 48),
                stage.operator,
                wording.error_text(stage),
                wording.allowed_text(stage),
                mark,
            )
        )
    yield from _table(("stage", "operator", "relative error", "allowed", ""), rows)
    if more:
        yield f"  +{more} more"


def _invariance(comparison: Comparison) -> Iterator[str]:
    head, rows = invariance.batch_table(comparison)
    return (f"  {line}" for line in table(head, [tuple(plain(cell, 40) for cell in row) for row in rows]))


def _metrics(comparison: Comparison) -> Iterator[str]:
    rows = [
        (
            plain(metric.name, 48),
            wording.figure(metric.base, 6),
            wording.figure(metric.head, 6),
            wording.band_text(metric),
            metric.state,
        )
        for metric in comparison.metrics
    ]
    yield from _table(("metric", "base", "head", "band", "state"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    return (f"  {line}" for line in table(head, rows))
