"""`reprokit baseline`: approve what a cell may measure, and show what is approved."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reprokit.compare.baseline import Approved
    from reprokit.model.baseline import Approval, Baseline
    from reprokit.model.fingerprint import Fingerprint

FOLDER = ".reprokit/baselines"


@click.group("baseline")
def baseline_group() -> None:
    """The numbers that people approved, one file a cell, kept in the repository."""


@baseline_group.command("approve")
@click.argument("fingerprint", type=click.Path())
@click.option("--cell", required=True, metavar="NAME", help="Cell of the matrix; also names the file.")
@click.option("--reason", metavar="TEXT", help="Why these numbers are right; reviewers read it.")
@click.option(
    "--folder", type=click.Path(), default=FOLDER, show_default=True, help="Folder of the baselines."
)
def approve_command(fingerprint: str, cell: str, reason: str | None, folder: str) -> None:
    """Approve FINGERPRINT as one that the cell NAME may measure.

    It is added beside what is approved already, so that several environments can stand side by side. A fingerprint
    with unstable stages, a missed known answer, a broken bound or a metric that is not finite is refused. What gives
    the numbers of an approval in its environment adds nothing, whatever commit it was measured at.

    \b
    Example:
      reprokit baseline approve head.json --cell gpu-h100 --reason "driver 570 on the new runners"
      git add .reprokit/baselines/gpu-h100.json
    """
    from pathlib import Path

    from reprokit.compare.baseline import check_cell
    from reprokit.model.fingerprint import Fingerprint
    from reprokit.model.reading import read

    path = Path(folder, f"{check_cell(cell)}.json")
    measured = read(fingerprint, Fingerprint)
    approved = approve_in_file(path, measured, cell, reason)
    for warning in _unlike_others(approved, measured):
        click.echo(f"warning: {warning}", err=True)
    what = f"approval {approved.index} of cell {cell}"
    click.echo(
        f"these numbers in this environment are already approved as {what}: {path} is unchanged"
        if approved.already
        else f"added {what} to {path}"
    )


def _unlike_others(approved: Approved, measured: Fingerprint) -> Iterator[str]:
    """What a person may have approved by mistake: nothing else in the cell is like it."""
    from reprokit.model.fingerprint import hardware

    others = [
        approval.fingerprint
        for index, approval in enumerate(approved.baseline.approvals)
        if index != approved.index
    ]
    for name, value, known in (
        ("seed", measured.seeds.base, {str(other.seeds.base) for other in others}),
        # without the mode: approvals of both stand side by side
        ("class of hardware", hardware(measured), {hardware(other) for other in others}),
    ):
        if known and str(value) not in known:
            yield f"its {name} is {value}, that of all other approvals of this cell {', '.join(sorted(known))}"


def approve_in_file(path: Path, fingerprint: Fingerprint, cell: str, reason: str | None = None) -> Approved:
    """Approve in the baseline at `path`, creating file and folder; where nothing is added, nothing is written.

    Raises:
        InvalidInput: the fingerprint cannot be approved, the file is no baseline, another cell's, full or too large,
            or cannot be written.
    """
    import msgspec

    from reprokit.compare.baseline import approve
    from reprokit.errors import InvalidInput
    from reprokit.model import canonical, reading
    from reprokit.model.baseline import Baseline

    approve(None, fingerprint, cell, reason)  # what is refused anyway leaves no folder behind
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            _refuse_twin(path)
            before = reading.read(path, Baseline) if path.exists() else None
            try:
                approved = approve(before, fingerprint, cell, reason)
            except InvalidInput as error:
                raise InvalidInput(f"{path}: {error}") from error
            if not approved.already:
                data = canonical.encode(msgspec.to_builtins(approved.baseline)) + b"\n"
                if len(data) > reading.MAX_BYTES:
                    raise InvalidInput(
                        f"{path}: with this approval it would be larger than {reading.MAX_BYTES // 2**20} MiB, the "
                        "most that a document may have: remove old approvals"
                    )
                canonical.write_file(path, data)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error
    return approved


def _refuse_twin(path: Path) -> None:
    """Names that differ in case alone are one file on some systems and two on others."""
    from reprokit.errors import InvalidInput

    for other in path.parent.glob("*.json"):
        if other.name != path.name and other.name.lower() == path.name.lower():
            raise InvalidInput(f"{path}: there is {other.name} already, which differs only in case")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone in `folder` among those who ask, so that two who approve at once do not overwrite each other."""
    import os

    try:
        import fcntl
    except ImportError:  # this platform has no such lock
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which also unlocks


@baseline_group.command("show")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...")
@click.option(
    "--folder", type=click.Path(), default=FOLDER, show_default=True, help="Folder of the baselines."
)
def show_command(names: tuple[str, ...], folder: str) -> None:
    """Show what is approved for each cell, or only for the cells or files that are named.

    \b
    Example:
      reprokit baseline show
      reprokit baseline show gpu-h100
    """
    from reprokit.model.baseline import Baseline
    from reprokit.model.reading import read
    from reprokit.report.table import table

    paths = list(_paths(names, folder))
    if not paths:
        click.echo(
            f"no baselines in {folder}; the first one: reprokit baseline approve FINGERPRINT --cell NAME"
        )
        return
    rows = [row for path in paths for row in _rows(read(path, Baseline))]
    click.echo(
        "\n".join(table(("cell", "#", "class", "profile", "seed", "environment", "logits", "reason"), rows))
    )


def _paths(names: tuple[str, ...], folder: str) -> Iterator[Path]:
    from pathlib import Path

    from reprokit.compare.baseline import check_cell

    if not names:
        yield from sorted(Path(folder).glob("*.json"))
    for name in names:
        yield Path(name) if Path(name).suffix == ".json" else Path(folder, f"{check_cell(name)}.json")


def _rows(baseline: Baseline) -> Iterator[tuple[str, ...]]:
    from reprokit.report.escape import plain

    for index, approval in enumerate(baseline.approvals):
        logits = (approval.fingerprint.logit_hash or "–").removeprefix("sha256:")[:12]
        yield (
            baseline.cell,
            str(index),
            plain(approval.fingerprint.class_key, 80),
            approval.fingerprint.probe.profile,
            str(approval.fingerprint.seeds.base),
            plain(_environment(approval), 90),
            logits,
            plain(approval.reason or "", 60),
        )


def _environment(approval: Approval) -> str:
    """The few fields by which a person knows an environment."""
    fingerprint = approval.fingerprint
    torch, numpy = fingerprint.torch, fingerprint.numpy
    parts = {
        "torch": torch.version if torch else None,
        "numpy": numpy.version if numpy else None,
        "cpu": torch.cpu_capability if torch else None,
        "driver": fingerprint.driver.version,
    }
    known = [f"{name} {value}" for name, value in parts.items() if value is not None]
    return ", ".join(known + [f"{name}={value}" for name, value in fingerprint.variables.items()])
