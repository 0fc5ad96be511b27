"""What a step of a workflow says of one cell: a summary in Markdown, whatever came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from reprokit.model.comparison import Comparison
from reprokit.model.config import Cell
from reprokit.model.fingerprint import Fingerprint
from reprokit.report import modes, wording
from reprokit.report.escape import code
from reprokit.report.escape import markdown as words
from reprokit.report.markdown import markdown

_REASON_WIDTH = 600
_MESSAGE_WIDTH = 4000
NEUTRAL = (
    "Neutral: the change under review cannot have caused this drift, and `on-external-change: neutral` lets it pass "
    "with a warning. It stays a drift until the new numbers are approved."
)
FAILURES = {
    "infrastructure": "nothing was measured, so this is no drift",
    "invalid": "the gate could not run",
}


def judged(cell: str, sections: Mapping[str, str], meaning: str | None = None) -> str:
    """The summary of a cell that was measured: the section of each mode, and what two of them mean together."""
    (body,) = sections.values() if len(sections) == 1 else [modes.markdown(sections, meaning)]
    return f"{_title(cell)}\n\n{body}"


def section(
    cell: Cell,
    fingerprint: Fingerprint,
    comparison: Comparison,
    origin: wording.Origin,
    warnings: Sequence[str],
    neutral: bool,
) -> str:
    """What the summary says of one mode; `neutral`: a drift that passes."""
    blocks = [_measured(cell, fingerprint)]
    if neutral:
        blocks.append(f"> {NEUTRAL}")
    blocks += [f"- ⚠ {words(warning, _REASON_WIDTH)}" for warning in warnings]
    return "\n\n".join([*blocks, markdown(comparison, origin)])


def failed(
    cell: str,
    verdict: str,
    message: str,
    log: Sequence[str],
    sections: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The summary of a cell that was not measured; `verdict` is a key of `FAILURES`, `log` the last lines.

    `sections` are those of the modes that were judged before it failed.
    """
    why = f"only mode {next(iter(sections))} was judged" if len(sections) == 1 else FAILURES[verdict]
    blocks = [
        _title(cell),
        f"### ! {verdict}: {why}",
        "\n".join(f"> {words(line, _MESSAGE_WIDTH)}" for line in message.splitlines()),
    ]
    if log:
        lines = "\n".join(f"<code>{words(line, 300)}</code><br>" for line in log)
        blocks.append(f"<details><summary>The last lines</summary>\n\n{lines}\n\n</details>")
    if sections:
        blocks.append(modes.markdown(sections, None).rstrip())
    return "\n\n".join(blocks) + "\n"


def short(cell: str, comparison: Comparison) -> str:
    """Stands for a summary that is too long to be shown."""
    return "\n\n".join(
        [
            _title(cell),
            f"### {wording.headline(comparison)}",
            words(wording.sentence(comparison), _REASON_WIDTH),
            words(comparison.diagnosis.reason, 2 * _REASON_WIDTH),
        ]
    )


def annotation(comparison: Comparison, neutral: bool) -> str:
    """The verdict in a few lines of plain text."""
    lines = [wording.headline(comparison), wording.sentence(comparison), comparison.diagnosis.reason]
    return "\n".join([*lines, NEUTRAL] if neutral else lines)


def _title(cell: str) -> str:
    return f"## reprokit: cell {code(cell)}"


def _measured(cell: Cell, fingerprint: Fingerprint) -> str:
    return " · ".join(_facts(cell, fingerprint))


def _facts(cell: Cell, fingerprint: Fingerprint) -> Iterator[str]:
    yield f"Measured on {code(fingerprint.class_key)}"
    image = fingerprint.image
    if image is not None:
        identity = (image.digest or image.recipe or "").removeprefix("sha256:")[:12]
        yield f"image {code(image.name or '')} {identity}" + ("" if image.checked else " (claimed)")
    else:
        yield "no image"
    yield f"profile {fingerprint.probe.profile}"
    yield f"seed {fingerprint.seeds.base}"
    if fingerprint.source.commit:
        yield f"commit {fingerprint.source.commit[:12]}" + (
            " with changes" if fingerprint.source.dirty else ""
        )
    yield f"level {cell.level} required"
