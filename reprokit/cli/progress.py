"""Progress of long work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_STEP = re.compile(r"(\w+) \[(\d+)/(\d+)\] (.*)")  # `probe [2/10] rng`


@contextmanager
def shown(first: str, everything: bool = False) -> Iterator[Callable[[str], None]]:
    """Takes lines of progress; those that are no step, such as a library's warnings, only with `everything`.

    `first` says on a terminal what happens before the first step.
    """
    if not sys.stderr.isatty():

        def line(text: str) -> None:
            if everything or _STEP.fullmatch(text):
                click.echo(text, err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[what]}"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None, what="")

        def draw(text: str) -> None:
            if step := _STEP.fullmatch(text):
                what, done, total, name = step.groups()
                bar.update(task, what=what, completed=int(done), total=int(total), description=name)
            elif everything:
                bar.console.print(text, markup=False, highlight=False)

        yield draw
