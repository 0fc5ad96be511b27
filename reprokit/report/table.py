"""Tables: aligned columns for a terminal, and those of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reprokit.report.escape import cut

_WIDEST = 240


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """One line for the head and one for each row, all cells already harmless; nothing without rows."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield cut(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), _WIDEST
        )


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """The same in Markdown, all cells already harmless."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
