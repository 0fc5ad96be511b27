"""A comparison as GitHub-flavoured Markdown, everything from the document escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reprokit.model.comparison import Comparison, FieldChange, StageComparison
from reprokit.report import invariance, wording
from reprokit.report.escape import code, value_text
from reprokit.report.escape import markdown as words

_UNKNOWN = wording.Origin()
_REASON_WIDTH = 600
_MOST_FOLDED = 200


def markdown(
    comparison: Comparison,
    origin: wording.Origin = _UNKNOWN,
) -> str:
    """The whole report, ending with a line break."""
    kind = comparison.diagnosis.class_
    blocks = [
        f"### {wording.headline(comparison)}",
        words(wording.sentence(comparison), _REASON_WIDTH),
        f"**Diagnosis{f': {kind}' if kind else ''}.** {words(comparison.diagnosis.reason, 2 * _REASON_WIDTH)}",
        *_checklist(comparison),
        *_levels(comparison),
        *_environment(comparison),
        *_stages(comparison),
        *_metrics(comparison),
        *_invariance(comparison),
        *_warnings(comparison),
        *_next(comparison, origin),
    ]
    return "\n\n".join(blocks) + "\n"


def _checklist(comparison: Comparison) -> Iterator[str]:
    if comparison.diagnosis.class_ is None:
        return
    rows = [
        (check.cause, f"{wording.MARKS[check.mark]} {check.mark}", words(check.reason, _REASON_WIDTH))
        for check in comparison.diagnosis.checklist
    ]
    yield _table(("where to look, in this order", "", "what was seen"), rows)


def _next(comparison: Comparison, origin: wording.Origin) -> Iterator[str]:
    for step, commands in wording.next_steps(comparison, origin):
        if commands:
            lines = "\n".join(_fenced(command) for command in commands)
            yield f"{words(step, _REASON_WIDTH)}:\n\n```\n{lines}\n```"
        else:
            yield f"{words(step, _REASON_WIDTH)}."


def _levels(comparison: Comparison) -> Iterator[str]:
    if not wording.compared(comparison):
        return
    rows = []
    for level in comparison.levels:
        required = ", required" if level.level == comparison.verdict.required else ""
        reasons, more = wording.split(level.reasons, wording.MOST_REASONS)
        why = "; ".join(words(reason, 160) for reason in reasons) + (f"; +{more} more" if more else "")
        rows.append((f"{level.level}{required}", "✓ holds" if level.holds else "✗ fails", why))
    yield _table(("level", "", "what breaks it"), rows)


def _environment(comparison: Comparison) -> Iterator[str]:
    shown, more = wording.split(comparison.environment, wording.MOST_FIELDS)
    if not shown:
        return
    yield f"**What changed in the environment** ({len(comparison.environment)})"
    yield _fields(shown)
    if more:
        rest = comparison.environment[wording.MOST_FIELDS :][:_MOST_FOLDED]
        yield from _folded(f"+{more} more fields", _fields(rest))


def _fields(changes: Sequence[FieldChange]) -> str:
    rows = []
    for change in changes:
        whose = ", the machine's" if change.external else ""
        old, new = (code(value_text(value)) for value in (change.base, change.head))
        rows.append(
            (code(change.field), f"{old} → {new}", change.relevance + whose, words(change.reason, 240))
        )
    return _table(("field", "base → head", "relevance", "why"), rows)


def _stages(comparison: Comparison) -> Iterator[str]:
    notable = wording.notable_stages(comparison)
    shown, more = wording.split(notable, wording.MOST_STAGES)
    if not shown:
        return
    first = comparison.diagnosis.first_stage
    yield "**Stages that differ**" + (f", first {code(first)}" if first else "")
    yield _stage_table(shown, first)
    if more:
        rest = notable[wording.MOST_STAGES :][:_MOST_FOLDED]
        yield from _folded(f"+{more} more stages", _stage_table(rest, first))


def _stage_table(stages: Sequence[StageComparison], first: str | None) -> str:
    rows = [
        (
            code(stage.name),
            stage.operator,
            wording.error_text(stage),
            wording.allowed_text(stage),
            "first" if stage.name == first else "follows" if stage.follows else "",
        )
        for stage in stages
    ]
    return _table(("stage", "operator", "relative error", "allowed", ""), rows)


def _metrics(comparison: Comparison) -> Iterator[str]:
    if not comparison.metrics:
        return
    rows = [
        (
            code(metric.name),
            wording.figure(metric.base, 6),
            wording.figure(metric.head, 6),
            wording.band_text(metric),
            metric.state,
        )
        for metric in comparison.metrics
    ]
    yield "**Metrics**"
    yield _table(("metric", "base", "head", "band", "state"), rows)


def _invariance(comparison: Comparison) -> Iterator[str]:
    """What gives the same numbers in whichever way they are computed, folded."""
    head, rows = invariance.batch_table(comparison)
    body = [_table(head, [(code(name), *cells) for name, *cells in rows])] if rows else []
    head, rows = invariance.pair_table(comparison)
    named = [(code(name), code(other), cell) for name, other, cell in rows[:_MOST_FOLDED]]
    body += [_table(head, named)] if named else []
    if body:
        title = "Invariance: = where a sample gives the same beside others, else the largest difference"
        yield from _folded(title, "\n\n".join(body))


def _warnings(comparison: Comparison) -> Iterator[str]:
    if comparison.warnings:
        yield "\n".join(f"- ⚠ {words(warning, _REASON_WIDTH)}" for warning in comparison.warnings)


def _folded(title: str, body: str) -> Iterator[str]:
    """A block that opens on a click; `title` is ours, never a document's."""
    yield f"<details><summary>{title}</summary>"
    yield body
    yield "</details>"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _fenced(command: str) -> str:
    """A command for a fenced block, which no run of backticks can end."""
    return "".join(character for character in command if character.isprintable() and character != "`")[:1000]
