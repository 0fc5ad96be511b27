"""The files and commands by which a step talks to GitHub's runner; outside of a workflow all of it does nothing.

Formats as in GitHub's "Workflow commands" and in the runner's ActionCommand and FileCommandManager. What is passed on
can come from a fork's documents and from an image: nothing in it may become a command of its own.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click

SUMMARY_BYTES = 1024 * 1024  # over it the runner drops the whole summary
MESSAGE_CHARACTERS = 4096
MOST_ANNOTATIONS = 10  # of each type in one step
Level = Literal["error", "warning", "notice"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*")
_told: Counter[str] = Counter()


def active() -> bool:
    """Whether this is a step of a workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def outputs(values: Mapping[str, str]) -> None:
    """Append the step's outputs, in a form that no value can break out of.

    Raises:
        ValueError: a name that is none.
    """
    import secrets  # here, because every error message imports this module

    text = ""
    for name, value in values.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an output")
        end = f"end-{secrets.token_hex(16)}"
        text += f"{name}<<{end}\n{value}\n{end}\n"
    _append("GITHUB_OUTPUT", text)


def summary(markdown: str, short: str | None = None) -> None:
    """Append to the step's summary; `short` stands in where the whole would be too long to be shown."""
    room = SUMMARY_BYTES - _size("GITHUB_STEP_SUMMARY") - 1
    if len(markdown.encode()) > room:
        markdown = (
            short or ""
        ) + "\n\nThe whole report is too long for a summary: see the step's output `report`.\n"
    if len(markdown.encode()) <= room:
        _append("GITHUB_STEP_SUMMARY", markdown if markdown.endswith("\n") else markdown + "\n")


def annotation(level: Level, message: str, title: str) -> None:
    """Show a message at the pull request; more than the runner takes of one level are left out."""
    if not active() or _told[level] >= MOST_ANNOTATIONS:
        return
    _told[level] += 1
    text = message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 1] + "…"
    click.echo(f"::{level} title={_property(title)}::{_data(text)}")


def harmless_line(text: str) -> str:
    """A line of a log in which the runner sees no command: `::name::` at its start, or `##[name]` anywhere."""
    text = text.replace("##[", "## [")
    return f"│ {text}" if text.lstrip().startswith("::") else text


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _size(variable: str) -> int:
    file = os.environ.get(variable)
    try:
        return Path(file).stat().st_size if file else 0
    except OSError:
        return 0


def _append(variable: str, text: str) -> None:
    """Append to the file that a variable names; that it cannot be written changes no verdict."""
    file = os.environ.get(variable)
    if not file:
        return
    try:
        with Path(file).open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
            stream.write(text)
    except OSError as error:
        click.echo(f"warning: {variable} cannot be written: {error.strerror}", err=True)
