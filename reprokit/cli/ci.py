"""`reprokit ci`: the gate of one cell as a workflow runs it."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options
from reprokit.cli.baseline import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from reprokit.gate import Measured
    from reprokit.model.comparison import Comparison
    from reprokit.model.config import Cell, Config
    from reprokit.model.fingerprint import Fingerprint
    from reprokit.report.wording import Origin

RUNS = ".reprokit/runs"
WRITTEN = ("fingerprint.json", "comparison.json", "report.md", "probe.log")
SERVICE_CODES = (3, 4)
_LOG_LINES = 20
MOST_LOG = 4_000_000  # characters that an image may put into the log


@click.command("ci")
@options.config
@click.option("--cell", "name", required=True, metavar="NAME", help="The cell of it that runs here.")
@click.option(
    "--baselines",
    type=click.Path(path_type=Path),
    default=FOLDER,
    show_default=True,
    metavar="FOLDER",
    help="Folder of the baselines.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where fingerprint, comparison, report and log go. "
    "[default: $RUNNER_TEMP/reprokit/NAME in a workflow, else .reprokit/runs/NAME]",
)
def ci_command(config: Path, name: str, baselines: Path, output: Path | None) -> None:
    """Run the gate of one cell: image, probe, comparison with the baseline, verdict.

    In a GitHub workflow it also writes the step summary, annotations and the outputs verdict, level, logit-hash,
    fingerprint and report, before a failing exit too.

    \b
    Exit code: 0 holds, 1 drifted, 2 usage or invalid input, 3 the engine, image or probe failed,
    4 a registry failed, 5 no baseline for this hardware.

    \b
    Example:
      reprokit matrix                        the cells
      reprokit ci --cell cpu-avx512          measure this machine as that cell says, and judge
      reprokit baseline approve .reprokit/runs/cpu-avx512/fingerprint.json --cell cpu-avx512
    """
    from reprokit.compare.baseline import check_cell
    from reprokit.errors import ProbeFailed, ReprokitError

    options = ["--config", str(config)] if str(config) != "reprokit.yml" else []
    options += ["--baselines", str(baselines)] if str(baselines) != FOLDER else []
    run = _Run(name, options)
    try:
        run.open(output or _default_folder(check_cell(name)))
        code = _gate(run, config, baselines)
    except (Exception, KeyboardInterrupt) as error:
        # what the summary says must be there before the step fails, whatever the reason
        unforeseen = ProbeFailed if isinstance(error, KeyboardInterrupt) else ReprokitError
        run.failed(error, getattr(error, "exit_code", unforeseen.exit_code))
        raise
    click.get_current_context().exit(code)


def _gate(run: _Run, path: Path, baselines: Path) -> int:
    """Measure and judge; the exit code."""
    from reprokit import gate
    from reprokit.cli.progress import shown
    from reprokit.images.recipes import available, builtin
    from reprokit.model import matrix

    config = matrix.read_config(path, builtin())
    cell = matrix.find(config, run.cell)
    baseline = gate.approved(baselines, cell.name)  # a broken one is told before anything slow
    with shown("looking for the image", everything=True) as show:
        measured = gate.measure(cell, available(config, path.parent), lambda line: run.say(line, show))
    comparison = gate.judge(baseline, cell, measured)
    run.judged(config, cell, measured, comparison, None if str(baselines) == FOLDER else str(baselines))
    return gate.exit_code(config, comparison)


def _default_folder(cell: str) -> Path:
    """Where a run of the cell leaves its files: out of the checkout in a workflow, else where nobody commits them."""
    from reprokit.github import runtime

    if runtime.active() and (temporary := os.environ.get("RUNNER_TEMP")):
        return Path(temporary, "reprokit", cell)
    return Path(RUNS, cell)


class _Run:
    """One run of a cell, and everything that it tells: progress, files, summary, annotations, outputs."""

    def __init__(self, cell: str, options: list[str]) -> None:
        self.cell = cell
        self._options = options
        self._folder: Path | None = None
        self._last: deque[str] = deque(maxlen=_LOG_LINES)
        self._said = 0

    def open(self, folder: Path) -> None:
        """Take `folder` for the files, and away what an earlier run left of them.

        Raises:
            InvalidInput: it cannot be made or written.
        """
        from reprokit.errors import InvalidInput
        from reprokit.github import runtime

        try:
            if not folder.exists():
                folder.mkdir(parents=True)
                if not runtime.active():  # as the caches of tools do
                    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
            for file in WRITTEN:
                (folder / file).unlink(missing_ok=True)
            (folder / "probe.log").touch()
        except OSError as error:
            raise InvalidInput(f"{folder}: cannot be written: {error.strerror}") from error
        self._folder = folder

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        assert self._folder is not None
        return self._folder

    def say(self, line: str, show: Callable[[str], None]) -> None:
        """Show a line of progress and keep it in the log."""
        from reprokit.errors import one_line
        from reprokit.github import runtime

        line = one_line(line)
        self._last.append(line)
        if self._said > MOST_LOG:
            return
        self._said += len(line) + 1
        if self._said > MOST_LOG:
            line = "… the rest of the log is left out"
        show(runtime.harmless_line(line))  # an image can print what the runner would obey
        with (self.folder / "probe.log").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def judged(
        self, config: Config, cell: Cell, measured: Measured, comparison: Comparison, baselines: str | None
    ) -> None:
        """Tell a verdict."""
        import msgspec

        from reprokit import gate
        from reprokit.github import runtime
        from reprokit.model import canonical
        from reprokit.report import summary, terminal, wording

        neutral = gate.neutral(config, comparison)
        fingerprint, state = measured.fingerprint, comparison.verdict.state
        origin = self._origin(fingerprint, baselines)
        report = summary.judged(cell, fingerprint, comparison, origin, measured.warnings, neutral)
        self._write("fingerprint.json", measured.document)
        self._write("comparison.json", canonical.encode(msgspec.to_builtins(comparison)) + b"\n")
        self._write("report.md", report.encode())
        runtime.summary(report, short=summary.short(cell.name, comparison))
        self._outputs(state, comparison.verdict.level, fingerprint.logit_hash)
        for line in terminal.text(comparison, origin=origin).splitlines():
            click.echo(runtime.harmless_line(line))
        if neutral:
            click.echo(f"\n{summary.NEUTRAL}")
        if state != "holds":
            title = f"reprokit: {cell.name} {wording.STATES[state]}"
            runtime.annotation(
                "warning" if neutral else "error", summary.annotation(comparison, neutral), title=title
            )
        for warning in measured.warnings:
            runtime.annotation("warning", warning, title=f"reprokit: {cell.name}")

    def failed(self, error: BaseException, code: int) -> None:
        """Tell why there is no verdict."""
        from reprokit.github import runtime
        from reprokit.model import canonical
        from reprokit.report import summary

        verdict = "infrastructure" if code in SERVICE_CODES else "invalid"
        message = str(error) or "the run was interrupted"
        report = summary.failed(self.cell, verdict, message, self._last)
        if self._folder is not None:
            with contextlib.suppress(OSError):  # it may be the very fault that is told here
                canonical.write_file(self._folder / "report.md", report.encode())
        runtime.summary(report)
        self._outputs(verdict, "none")
        with contextlib.suppress(OSError):  # a log that cannot be written
            runtime.annotation("error", message, title=f"reprokit: {self.cell} {verdict}")

    def _outputs(self, verdict: str, level: str, logit_hash: str | None = None) -> None:
        from reprokit.github import runtime

        def there(name: str) -> str:
            file = self._folder and self._folder / name
            return str(file) if file and file.exists() else ""

        runtime.outputs(
            {
                "verdict": verdict,
                "level": level,
                "logit-hash": logit_hash or "",
                "fingerprint": there("fingerprint.json"),
                "report": there("report.md"),
            }
        )

    def _write(self, name: str, data: bytes) -> None:
        from reprokit.errors import InvalidInput
        from reprokit.model import canonical

        try:
            canonical.write_file(self.folder / name, data)
        except OSError as error:
            raise InvalidInput(f"{self.folder / name}: cannot be written: {error.strerror}") from error

    def _origin(self, fingerprint: Fingerprint, baselines: str | None) -> Origin:
        """How whoever reads the report comes by the fingerprint: from the run's artifact, or from where it lies."""
        from reprokit.report.wording import Origin

        command = shlex.join(["reprokit", "ci", "--cell", self.cell, *self._options])
        run, artifact = os.environ.get("GITHUB_RUN_ID", ""), os.environ.get("REPROKIT_ARTIFACT", "")
        if run.isdecimal() and artifact == f"reprokit-{self.cell}":
            fetch = f"gh run download {run} --name {artifact} --dir {artifact}"
            return Origin(f"{artifact}/fingerprint.json", fingerprint, baselines, command, fetch)
        return Origin(os.path.relpath(self.folder / "fingerprint.json"), fingerprint, baselines, command)
