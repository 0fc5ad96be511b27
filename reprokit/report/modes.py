"""The reports of the two modes of one cell as one; by mode, each report by itself, and what the two mean together."""

from __future__ import annotations

from collections.abc import Mapping

from reprokit.report.escape import markdown as words
from reprokit.report.escape import plain

_MEANING_WIDTH = 600


def markdown(reports: Mapping[str, str], meaning: str | None) -> str:
    """In Markdown, what they mean first, ending with a line break."""
    blocks = [f"**{words(meaning, _MEANING_WIDTH)}**"] if meaning else []
    blocks += [f"## Mode {mode}\n\n{report.rstrip()}" for mode, report in reports.items()]
    return "\n\n".join(blocks) + "\n"


def text(reports: Mapping[str, str], meaning: str | None) -> str:
    """For a terminal, what they mean last, ending with a line break."""
    blocks = [f"Mode {mode}: {report.rstrip()}" for mode, report in reports.items()]
    blocks += [f"Modes\n  {plain(meaning, _MEANING_WIDTH)}"] if meaning else []
    return "\n\n".join(blocks) + "\n"
