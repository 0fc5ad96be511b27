"""`reprokit ci`: the gate of one cell as a workflow runs it."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options
from reprokit.cli.baseline import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from reprokit.gate import Judged
    from reprokit.model.config import Config
    from reprokit.model.fingerprint import Fingerprint
    from reprokit.report.wording import Origin

RUNS = ".reprokit/runs"
WRITTEN = (
    "fingerprint.json",
    "comparison.json",
    "fingerprint-strict.json",
    "comparison-strict.json",
    "report.md",
    "probe.log",
)
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
    fingerprint and report, before a failing exit too. Of a cell with `mode: both`, the two modes are measured one after
    the other and judged each by itself; exit code and outputs are those of the worse one, of default where they agree,
    and the files of strict are called fingerprint-strict.json and comparison-strict.json.

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
    """Measure and judge, one mode after the other; the exit code."""
    from reprokit import gate
    from reprokit.cli.progress import shown
    from reprokit.images.recipes import available, builtin
    from reprokit.model import matrix

    config = matrix.read_config(path, builtin())
    cell = matrix.find(config, run.cell)
    baseline = gate.approved(baselines, cell.name)  # a broken one is told before anything slow
    run.both = cell.mode == "both"
    for one in gate.by_mode(cell):
        with shown("looking for the image", everything=True) as show:
            say = partial(run.say, show=show)
            if run.both:
                say(f"mode {one.mode}")
            measured = gate.measure(one, available(config, path.parent), say)
        judged = gate.Judged(one, measured, gate.judge(baseline, one, measured))
        run.keep(config, judged, None if str(baselines) == FOLDER else str(baselines))
    run.judged(config)
    return gate.exit_code(config, gate.worst(config, run.found).comparison)


def _default_folder(cell: str) -> Path:
    """Where a run of the cell leaves its files: out of the checkout in a workflow, else where nobody commits them."""
    from reprokit.github import runtime

    if runtime.active() and (temporary := os.environ.get("RUNNER_TEMP")):
        return Path(temporary, "reprokit", cell)
    return Path(RUNS, cell)


@dataclass(frozen=True)
class _Kept:
    """One mode that was judged, its files written: how a reader comes by them, and whether its drift passes."""

    judged: Judged
    file: str
    origin: Origin
    neutral: bool

    @property
    def section(self) -> str:
        """What the summary says of it."""
        from reprokit.report import summary

        one, measured = self.judged, self.judged.measured
        return summary.section(
            one.cell, measured.fingerprint, one.comparison, self.origin, measured.warnings, self.neutral
        )

    @property
    def text(self) -> str:
        """What the log says of it."""
        from reprokit.report import summary, terminal

        text = terminal.text(self.judged.comparison, origin=self.origin)
        return f"{text}\n{summary.NEUTRAL}\n" if self.neutral else text


class _Run:
    """One run of a cell, and everything that it tells: progress, files, summary, annotations, outputs."""

    def __init__(self, cell: str, options: list[str]) -> None:
        self.cell = cell
        self.both = False  # whether the cell has both modes
        self._options = options
        self._folder: Path | None = None
        self._last: deque[str] = deque(maxlen=_LOG_LINES)
        self._said = 0
        self._kept: dict[str, _Kept] = {}  # by mode

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

    @property
    def found(self) -> list[Judged]:
        """The modes that were judged, in their order."""
        return [kept.judged for kept in self._kept.values()]

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

    def keep(self, config: Config, judged: Judged, baselines: str | None) -> None:
        """Write the files of one mode: those of a second one get its name."""
        import msgspec

        from reprokit import gate
        from reprokit.model import canonical

        mode, measured, comparison = judged.cell.mode, judged.measured, judged.comparison
        suffix = f"-{mode}" if self._kept else ""
        file = f"fingerprint{suffix}.json"
        self._write(file, measured.document)
        self._write(f"comparison{suffix}.json", canonical.encode(msgspec.to_builtins(comparison)) + b"\n")
        origin = self._origin(file, measured.fingerprint, baselines)
        self._kept[mode] = _Kept(judged, file, origin, gate.neutral(config, comparison))

    def judged(self, config: Config) -> None:
        """Tell the verdict: the outputs are those of the mode that decides."""
        from reprokit import gate
        from reprokit.compare.modes import meaning
        from reprokit.github import runtime
        from reprokit.report import modes, summary

        means = meaning(*(one.comparison for one in self.found)) if self.both else None
        report = summary.judged(self.cell, {mode: kept.section for mode, kept in self._kept.items()}, means)
        self._write("report.md", report.encode())
        short = [
            summary.short(f"{self.cell}, mode {mode}" if self.both else self.cell, kept.judged.comparison)
            for mode, kept in self._kept.items()
        ]
        runtime.summary(report, short="\n\n".join([*short, means] if means else short))
        worst = gate.worst(config, self.found)
        kept, verdict = self._kept[worst.cell.mode], worst.comparison.verdict
        self._outputs(verdict.state, verdict.level, worst.measured.fingerprint.logit_hash, kept.file)
        texts = {mode: kept.text for mode, kept in self._kept.items()}
        for line in (modes.text(texts, means) if self.both else kept.text).splitlines():
            click.echo(runtime.harmless_line(line))
        for mode, kept in self._kept.items():
            self._annotate(kept, f" mode {mode}" if self.both else "", means)
        for warning in dict.fromkeys(warning for one in self.found for warning in one.measured.warnings):
            runtime.annotation("warning", warning, title=f"reprokit: {self.cell}")

    def _annotate(self, kept: _Kept, mode: str, means: str | None) -> None:
        """Show at the pull request a mode that does not hold."""
        from reprokit.github import runtime
        from reprokit.report import summary, wording

        comparison = kept.judged.comparison
        state = comparison.verdict.state
        if state == "holds":
            return
        message = summary.annotation(comparison, kept.neutral)
        runtime.annotation(
            "warning" if kept.neutral else "error",
            f"{message}\n{means}" if means else message,
            title=f"reprokit: {self.cell}{mode} {wording.STATES[state]}",
        )

    def failed(self, error: BaseException, code: int) -> None:
        """Tell why there is no verdict."""
        from reprokit.github import runtime
        from reprokit.model import canonical
        from reprokit.report import summary

        verdict = "infrastructure" if code in SERVICE_CODES else "invalid"
        message = str(error) or "the run was interrupted"
        sections = {mode: kept.section for mode, kept in self._kept.items()} if self.both else {}
        report = summary.failed(self.cell, verdict, message, self._last, sections)
        if self._folder is not None:
            with contextlib.suppress(OSError):  # it may be the very fault that is told here
                canonical.write_file(self._folder / "report.md", report.encode())
        runtime.summary(report)
        self._outputs(verdict, "none")
        with contextlib.suppress(OSError):  # a log that cannot be written
            runtime.annotation("error", message, title=f"reprokit: {self.cell} {verdict}")

    def _outputs(
        self, verdict: str, level: str, logit_hash: str | None = None, file: str = "fingerprint.json"
    ) -> None:
        from reprokit.github import runtime

        def there(name: str) -> str:
            file = self._folder and self._folder / name
            return str(file) if file and file.exists() else ""

        runtime.outputs(
            {
                "verdict": verdict,
                "level": level,
                "logit-hash": logit_hash or "",
                "fingerprint": there(file),
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

    def _origin(self, file: str, fingerprint: Fingerprint, baselines: str | None) -> Origin:
        """How whoever reads the report comes by the fingerprint: from the run's artifact, or from where it lies."""
        from reprokit.report.wording import Origin

        command = shlex.join(["reprokit", "ci", "--cell", self.cell, *self._options])
        run, artifact = os.environ.get("GITHUB_RUN_ID", ""), os.environ.get("REPROKIT_ARTIFACT", "")
        if run.isdecimal() and artifact == f"reprokit-{self.cell}":
            fetch = f"gh run download {run} --name {artifact} --dir {artifact}"
            return Origin(f"{artifact}/{file}", fingerprint, baselines, command, fetch)
        return Origin(os.path.relpath(self.folder / file), fingerprint, baselines, command)
