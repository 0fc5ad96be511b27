"""`reprokit compare`: hold a fingerprint against another one or against a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reprokit.model.comparison import Comparison, Level
    from reprokit.report.wording import Origin


@click.command("compare")
@click.argument("base", type=click.Path())
@click.argument("head", type=click.Path())
@click.argument("strict", type=click.Path(), required=False)
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
def compare_command(
    base: str, head: str, strict: str | None, level: Level, form: str, output: str | None
) -> None:
    """Compare a fingerprint with another or a baseline.

    Says which level of agreement holds, which stage of the computation differs first, what changed in the
    environment, and whether the change under review can be the cause.

    With STRICT, HEAD and STRICT are one machine measured in mode default and in mode strict, as `reprokit probe
    --mode both` does. Each is held against the baseline BASE by itself, the exit code is the worse one, and the report
    says what it means that only one of them moved, or both.

    \b
    Exit code: 0 holds, 1 drifted, 2 cannot be compared, 5 no baseline for this hardware.

    \b
    Example:
      reprokit probe -o head.json
      reprokit compare .reprokit/baselines/cpu.json head.json --level process
      reprokit compare .reprokit/baselines/cpu.json now.default.json now.strict.json
    """
    from reprokit.compare import EXIT_CODES
    from reprokit.compare.modes import WORST_FIRST
    from reprokit.errors import InvalidInput

    heads = [head] if strict is None else [head, strict]
    if output is not None and any(_same(output, path) for path in (base, *heads)):
        raise InvalidInput(f"{output}: is also read; the report would replace it")
    found = _compared(base, heads, level)
    report = _render(found, form)
    if output is None:
        click.echo(report, nl=False)
    else:
        _write(output, report)
        click.echo(_summary(found, output))
    for comparison, origin in found:
        if comparison.verdict.state == "no_baseline" and (output is not None or form == "json"):
            _echo_steps(comparison, origin)
    worst = min((comparison.verdict.state for comparison, _ in found), key=WORST_FIRST.index)
    # by click's own way out, so that an exit code of 1 can only be this verdict
    click.get_current_context().exit(EXIT_CODES[worst])


def _compared(base: str, heads: Sequence[str], level: Level) -> list[tuple[Comparison, Origin]]:
    """The comparison of each head, and how a reader comes by it.

    Raises:
        InvalidInput: a document is none of its kind, or two heads are no pair.
    """
    from reprokit.compare import compare, nothing_approved
    from reprokit.compare.modes import no_pair
    from reprokit.errors import InvalidInput
    from reprokit.model.baseline import Baseline
    from reprokit.model.fingerprint import Fingerprint
    from reprokit.model.reading import read, read_any
    from reprokit.report.wording import Origin

    measured = [read(head, Fingerprint) for head in heads]
    cell = _missing_cell(base)
    approved = None if cell else read_any(base, Fingerprint, Baseline)
    if len(heads) > 1:
        if isinstance(approved, Fingerprint):
            raise InvalidInput(
                f"{base}: two fingerprints are held against a baseline, and this is a fingerprint"
            )
        if problem := no_pair(*measured):
            raise InvalidInput(f"{' and '.join(heads)}: {problem}")
    comparisons = [
        compare(approved, one, level) if approved else nothing_approved(cell or "", [], one, level)
        for one in measured
    ]
    return [
        (comparison, Origin(head, one, _unusual_folder(base, comparison)))
        for head, one, comparison in zip(heads, measured, comparisons, strict=True)
    ]


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


def _render(found: Sequence[tuple[Comparison, Origin]], form: str) -> str:
    if form == "json":
        import msgspec

        from reprokit.model import canonical

        documents = [msgspec.to_builtins(comparison) for comparison, _ in found]
        return canonical.encode(documents if len(documents) > 1 else documents[0]).decode() + "\n"
    from reprokit.report import modes

    reports = [_report(comparison, form, origin) for comparison, origin in found]
    if len(reports) == 1:
        return reports[0]
    from reprokit.compare.modes import meaning

    by_mode = dict(zip(("default", "strict"), reports, strict=True))
    means = meaning(*(comparison for comparison, _ in found))
    return (modes.markdown if form == "markdown" else modes.text)(by_mode, means)


def _report(comparison: Comparison, form: str, origin: Origin) -> str:
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


def _summary(found: Sequence[tuple[Comparison, Origin]], output: str) -> str:
    from reprokit.report.escape import plain
    from reprokit.report.wording import headline

    lines = [headline(comparison) for comparison, _ in found]
    if len(lines) > 1:
        lines = [f"mode {mode}: {line}" for mode, line in zip(("default", "strict"), lines, strict=True)]
    return f"{', '.join(lines)} (report in {plain(output, 300)})"
