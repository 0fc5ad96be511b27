"""`reprokit compare`: hold a fingerprint against another one or against a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from reprokit.model.comparison import Comparison, Level
    from reprokit.report.wording import Origin


@click.command("compare")
@click.argument("base", type=click.Path())
@click.argument("head", type=click.Path())
@click.option(
    "--level",
    type=click.Choice(["bit", "process", "conclusion"]),
    default="bit",
    show_default=True,
    help="Level that must hold: every bit, floats within tolerance, or metrics over seeds.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="How to show it.",
)
@click.option(
    "-o", "--output", type=click.Path(), help="Write the report to FILE and print one line.", metavar="FILE"
)
def compare_command(base: str, head: str, level: Level, form: str, output: str | None) -> None:
    """Compare a fingerprint with another or a baseline.

    Says which level of agreement holds, which stage of the computation differs first, what changed in the
    environment, and whether the change under review can be the cause.

    \b
    Exit code: 0 holds, 1 drifted, 2 cannot be compared, 5 no baseline for this hardware.

    \b
    Example:
      reprokit probe -o head.json
      reprokit compare .reprokit/baselines/cpu.json head.json --level process
    """
    from reprokit.compare import EXIT_CODES, compare, nothing_approved
    from reprokit.errors import InvalidInput
    from reprokit.model.baseline import Baseline
    from reprokit.model.fingerprint import Fingerprint
    from reprokit.model.reading import read, read_any
    from reprokit.report.wording import Origin

    if output is not None and any(_same(output, path) for path in (base, head)):
        raise InvalidInput(f"{output}: is also read; the report would replace it")
    measured = read(head, Fingerprint)
    if cell := _missing_cell(base):
        comparison = nothing_approved(cell, [], measured, level)
    else:
        comparison = compare(read_any(base, Fingerprint, Baseline), measured, level)
    origin = Origin(head, measured, _unusual_folder(base, comparison))
    report = _render(comparison, form, origin)
    if output is None:
        click.echo(report, nl=False)
    else:
        _write(output, report)
        click.echo(_summary(comparison, output))
    if comparison.verdict.state == "no_baseline" and (output is not None or form == "json"):
        _echo_steps(comparison, origin)
    # by click's own way out, so that an exit code of 1 can only be this verdict
    click.get_current_context().exit(EXIT_CODES[comparison.verdict.state])


def _same(output: str, path: str) -> bool:
    """Whether writing `output` would replace the file `path`; a device, such as a terminal, is never replaced."""
    from pathlib import Path

    return Path(output).is_file() and Path(path).is_file() and Path(output).samefile(path)


def _missing_cell(base: str) -> str | None:
    """The cell whose baseline was never written, where `base` is the place of one; what is there or elsewhere: None.

    Raises:
        InvalidInput: no cell can have that name.
    """
    from pathlib import Path

    from reprokit.cli.baseline import FOLDER
    from reprokit.compare.baseline import check_cell

    path = Path(base)
    if path.suffix != ".json" or path.parent.name != Path(FOLDER).name or path.exists():
        return None
    cell = check_cell(path.stem)
    if others := sorted(other.stem for other in path.parent.glob("*.json")):
        click.echo(f"warning: {base} does not exist; the cells here are: {', '.join(others)}", err=True)
    return cell


def _unusual_folder(base: str, comparison: Comparison) -> str | None:
    """The folder of a baseline, where `reprokit baseline approve` must be told of it."""
    from pathlib import Path

    from reprokit.cli.baseline import FOLDER

    folder = Path(base).parent
    return str(folder) if comparison.base.source == "baseline" and folder != Path(FOLDER) else None


def _render(comparison: Comparison, form: str, origin: Origin) -> str:
    if form == "json":
        import msgspec

        from reprokit.model import canonical

        return canonical.encode(msgspec.to_builtins(comparison)).decode() + "\n"
    if form == "markdown":
        from reprokit.report.markdown import markdown

        return markdown(comparison, origin)
    import os
    import sys

    from reprokit.report.terminal import text

    return text(comparison, sys.stdout.isatty() and "NO_COLOR" not in os.environ, origin)


def _echo_steps(comparison: Comparison, origin: Origin) -> None:
    """What to do without a baseline, where standard output does not say it."""
    from reprokit.report.escape import plain
    from reprokit.report.wording import next_steps

    for words, commands in next_steps(comparison, origin):
        click.echo(f"{plain(words, 400)}:", err=True)
        for command in commands:
            click.echo(f"  {plain(command, 1000)}", err=True)


def _write(output: str, report: str) -> None:
    from reprokit.errors import InvalidInput
    from reprokit.model import canonical

    try:
        canonical.write_file(output, report.encode())
    except OSError as error:
        raise InvalidInput(f"{output}: cannot be written: {error.strerror}") from error


def _summary(comparison: Comparison, output: str) -> str:
    from reprokit.report.escape import plain
    from reprokit.report.wording import headline

    return f"{headline(comparison)} (report in {plain(output, 300)})"
