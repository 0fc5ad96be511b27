"""`reprokit env`: show what a fingerprint would say about this machine and this interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reprokit.errors import one_line

if TYPE_CHECKING:
    from reprokit.model.environment import EnvironmentReport

_SECTIONS = (
    "system",
    "python",
    "packages",
    "cpu",
    "gpus",
    "driver",
    "torch",
    "numpy",
    "libraries",
    "variables",
    "source",
)
_STATES = {"unavailable": "not available", "not_asked": "not asked"}
_TIMEOUT_SECONDS = 300

Row = tuple[str, str]


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="Print the document `environment` as canonical JSON.")
@click.option(
    "--detail",
    type=click.Choice(["private", "full"]),
    default="private",
    show_default=True,
    help="full also shows UUIDs, addresses, paths and all packages, in JSON all variables: for private repositories.",
)
def env_command(as_json: bool, detail: str) -> None:
    """Show everything about this machine that can change numbers.

    Runs one small operator of each kind, so that the libraries really load, and tells what is requested
    (variables), what is effective (torch, numpy) and what is loaded (libraries). What cannot be read is shown
    with its reason.

    \b
    Examples:
      reprokit env                        a table for people
      reprokit env --json > before.json   the document, to diff with one taken after an upgrade
      ATEN_CPU_CAPABILITY=avx2 reprokit env --json
                                          see the setting at variables.ATEN_CPU_CAPABILITY
                                          and its effect at torch.cpu_capability
    """
    output = collected(detail)
    report = decoded(output)
    if as_json:
        click.echo(output.rstrip(b"\n"))
    else:
        _print_table(report)


def collected(detail: str) -> bytes:
    """The environment document of this interpreter, as bytes, from a process of its own.

    Raises:
        ProbeFailed: that process failed or took longer than five minutes.
    """
    from reprokit import launch  # the command line starts with click alone
    from reprokit.errors import ProbeFailed

    command = launch.command("reprokit.environment", "--detail", detail)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise ProbeFailed(f"the interpreter could not be started: {error.strerror}") from error
    with process:
        from reprokit.model import environment, reading  # noqa: F401 - while the other process imports torch

        try:
            output, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProbeFailed(
                    f"collecting the environment took longer than {_TIMEOUT_SECONDS} s"
                ) from None
            raise
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        raise ProbeFailed(f"collecting the environment ended with {how}: {one_line(lines[-1])}")
    return output


def decoded(output: bytes) -> EnvironmentReport:
    """The document in `output`, validated.

    Raises:
        ProbeFailed: it is no such document, which only a mixed installation can cause.
    """
    from reprokit.errors import InvalidInput, ProbeFailed
    from reprokit.model.environment import EnvironmentReport
    from reprokit.model.reading import decode, parse_json

    try:
        return decode(parse_json(output, "environment"), EnvironmentReport, "environment")
    except InvalidInput as error:
        raise ProbeFailed(f"the collectors wrote no valid document: {error}") from error


def sections(report: EnvironmentReport) -> Iterator[tuple[str, list[Row]]]:
    """The document for people: per section its fields by dotted path, each null with its reason."""
    import msgspec

    document = msgspec.to_builtins(report)
    reasons = {
        entry["field"]: f"{_STATES[entry['state']]}: {entry['reason']}" for entry in document["absent"]
    }
    for section in _SECTIONS:
        whole = reasons.get(section) or reasons.get(f"{section}.*")
        value = document[section]
        if whole and not _says_something(value):
            yield section, [(section, whole)]
        else:
            yield (
                section,
                [(path, text) for path, text in _rows(section, value, reasons)] or [(section, "none")],
            )


def _rows(path: str, value: Any, reasons: dict[str, str]) -> Iterator[Row]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _rows(_member(path, key), item, reasons)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, item in enumerate(value):
            yield from _rows(f"{path}[{index}]", item, reasons)
    elif isinstance(value, list):
        yield path, one_line(", ".join(value)) or "none"
    elif value is None:
        yield path, one_line(_reason(path, reasons))
    elif value != {}:
        yield path, one_line(_scalar(value))


def _member(path: str, key: str) -> str:
    """`path.key`, in quotes where the key has other characters than a name's."""
    if key.replace("_", "").replace("-", "").isalnum() and key.isascii():
        return f"{path}.{key}"
    quoted = one_line(key).replace('"', '\\"')
    return f'{path}["{quoted}"]'


def _reason(path: str, reasons: dict[str, str]) -> str:
    """The reason for one field: its own, that of all fields beside it, or none because null has a meaning."""
    if path in reasons:
        return reasons[path]
    parent = path
    while "." in parent:
        parent = parent.rpartition(".")[0]
        if f"{parent}.*" in reasons:
            return reasons[f"{parent}.*"]
    return "none"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _says_something(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_says_something(item) for item in value.values())
    return bool(value)


def _print_table(report: EnvironmentReport) -> None:
    if not sys.stdout.isatty():
        for section, rows in sections(report):
            click.echo(f"[{section}]")
            for path, text in rows:
                click.echo(f"{path} = {text}")
            click.echo()
        return
    from rich.console import Console  # 50 ms, and only for a terminal
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for section, rows in sections(report):
        table = Table(
            title=Text(section), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
        )
        table.add_column(style="cyan", overflow="fold")
        table.add_column(overflow="fold")
        for path, text in rows:
            table.add_row(Text(path), Text(text))
        console.print(table)
        console.print()
