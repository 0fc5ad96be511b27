"""The gate of one cell: prepare its image, run the probe in it, validate, compare with what was approved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reprokit import __version__
from reprokit.compare import EXIT_CODES, compare, nothing_approved
from reprokit.compare.modes import WORST_FIRST
from reprokit.errors import InvalidInput, ProbeFailed
from reprokit.model.baseline import Baseline
from reprokit.model.comparison import Comparison
from reprokit.model.config import Cell, Config
from reprokit.model.fingerprint import Fingerprint, contradictions
from reprokit.model.reading import decode, parse_json, read

if TYPE_CHECKING:
    from reprokit.images.recipes import Source

Say = Callable[[str], None]
NEUTRAL = "neutral"


@dataclass(frozen=True)
class Measured:
    """What the probe gave: the document as bytes and as a fingerprint, and what must be said of the run."""

    document: bytes
    fingerprint: Fingerprint
    warnings: list[str]


@dataclass(frozen=True)
class Judged:
    """One mode of a cell, measured and compared; `cell` is the cell with that mode alone."""

    cell: Cell
    measured: Measured
    comparison: Comparison


def approved(folder: Path, cell: str) -> Baseline | None:
    """The baseline of a cell; None where nothing was ever approved.

    Raises:
        InvalidInput: the file is there and is no baseline, or another cell's.
    """
    path = folder / f"{cell}.json"
    if not path.exists():
        return None
    baseline = read(path, Baseline)
    if baseline.cell != cell:
        raise InvalidInput(f"{path}: /cell: expected {cell}, found {baseline.cell}")
    return baseline


def measure(cell: Cell, images: Mapping[str, Source], say: Say) -> Measured:
    """Run the probe as `cell` says; `say` gets lines of progress.

    Raises:
        InvalidInput: the cell or its image is wrong.
        ProbeFailed: engine, image or probe failed, or what came back is not what was asked for.
        ServiceFailed: a registry failed, or does not know the image.
    """
    from reprokit.environment import source
    from reprokit.environment.absence import Absences
    from reprokit.images import recipes

    image = None if cell.image is None else recipes.find(images, cell.image)
    commit, dirty = source.state(Absences())
    told: dict[str, Any] = {"image": None, "commit": commit, "dirty": dirty}
    warnings: list[str] = []
    if image is not None and cell.engine != "local":
        document = _in_container(cell, image, told, warnings, say)
    else:
        if image is not None:
            told["image"] = _claimed(image, warnings)
        document = _on_this_machine(cell, told, say)
    return Measured(document, validated(document, cell, told), warnings)


def judge(baseline: Baseline | None, cell: Cell, measured: Measured) -> Comparison:
    """The measured against what was approved for the cell, at the level that it requires."""
    if baseline is None:
        return nothing_approved(cell.name, [], measured.fingerprint, cell.level)
    return compare(baseline, measured.fingerprint, cell.level)


def by_mode(cell: Cell) -> list[Cell]:
    """The cell once for each of its modes, in the order in which they run."""
    modes = ("default", "strict") if cell.mode == "both" else (cell.mode,)
    return [msgspec.structs.replace(cell, mode=mode) for mode in modes]


def worst(config: Config, found: Sequence[Judged]) -> Judged:
    """The mode that decides for its cell, the first of equals; a drift that passes is hardly worse than none."""

    def rank(one: Judged) -> tuple[int, bool]:
        state = one.comparison.verdict.state
        return WORST_FIRST.index("holds" if neutral(config, one.comparison) else state), state == "holds"

    return min(found, key=rank)


def neutral(config: Config, comparison: Comparison) -> bool:
    """Whether a drift passes with a warning: it came from outside, and something still holds."""
    return (
        config.on_external_change == NEUTRAL
        and comparison.verdict.state == "drifted"
        and comparison.diagnosis.caused_by_change == "no"
        and comparison.verdict.level != "none"
    )


def exit_code(config: Config, comparison: Comparison) -> int:
    """The exit code of the gate."""
    return 0 if neutral(config, comparison) else EXIT_CODES[comparison.verdict.state]


def _in_container(cell: Cell, source: Source, told: dict[str, Any], warnings: list[str], say: Say) -> bytes:
    from reprokit.engines import container, docker
    from reprokit.engines.gpus import ALL, driver_version, too_old
    from reprokit.images.prepare import prepare

    gpus = (cell.gpus or [ALL]) if cell.device == "cuda" else []
    old = too_old(source.image.driver, driver_version()) if gpus else None
    if old:  # no refusal: an image can bring a newer driver library of its own (forward compatibility)
        warnings.append(old)
    with docker.connected() as client:
        for name in docker.sweep(client):
            say(f"removed the container {name}, which a killed run had left")
        prepared = prepare(client, source, say)
        told["image"] = prepared.told
        job = _job(cell, cell.python or prepared.python, told)
        try:
            return container.run(client, job, prepared.id, cell.limits, gpus, say, cell.name)
        except ProbeFailed as error:
            if not old:
                raise
            raise ProbeFailed(f"{old} ({error})") from error


def _on_this_machine(cell: Cell, told: dict[str, Any], say: Say) -> bytes:
    from reprokit.engines import local

    return local.run(_job(cell, cell.python or "python3", told), say)


def _claimed(source: Source, warnings: list[str]) -> dict[str, Any]:
    """The image that this process runs in already, as far as that can be seen."""
    from reprokit.engines import claim
    from reprokit.images.prepare import image_section

    assert source.image.pull is not None
    digest = source.image.pull.partition("@")[2]
    checked = claim.check(digest)
    if not checked:
        warnings.append(
            f"that this container is of image {source.name} is only claimed: no container engine can be asked here"
        )
    return image_section(source.name, digest=digest, checked=checked)


def _job(cell: Cell, python: str, told: dict[str, Any]) -> Any:
    from reprokit.engines.job import Job

    chosen = {"profile": cell.profile, "device": cell.device, "mode": cell.mode, "seed": str(cell.seed)}
    return Job(
        arguments=[word for name, value in chosen.items() for word in (f"--{name}", value)],
        variables={name: str(value) for name, value in cell.variables.items()},
        prefix=list(cell.exec),
        python=python,
        timeout=60.0 * cell.timeout_minutes,
        told=told,
    )


def validated(document: bytes, cell: Cell, told: dict[str, Any]) -> Fingerprint:
    """The probe's output as a fingerprint of just this run: an image is not trusted to have run what it was told.

    Raises:
        ProbeFailed: it is no fingerprint, contradicts itself, or tells of another run.
    """
    from reprokit.environment import source

    where = "the probe's output"
    try:
        fingerprint = decode(parse_json(document, where), Fingerprint, where, document)
    except InvalidInput as error:
        raise ProbeFailed(str(error)) from error
    for problem in contradictions(fingerprint):
        raise ProbeFailed(f"{where}: {problem}")
    image = fingerprint.image
    for what, asked, found in (
        ("/probe/profile", cell.profile, fingerprint.probe.profile),
        ("/probe/device", cell.device, fingerprint.probe.device),
        ("/probe/mode", cell.mode, fingerprint.probe.mode),
        ("/seeds/base", cell.seed, fingerprint.seeds.base),
        ("/source/commit", told["commit"], fingerprint.source.commit),
        ("/source/dirty", told["dirty"], fingerprint.source.dirty),
        ("/source/reprokit", __version__, fingerprint.source.reprokit),
        ("/source/probe_sha256", source.measuring_code(), fingerprint.source.probe_sha256),
        ("/image", told["image"], None if image is None else msgspec.to_builtins(image)),
    ):
        if asked != found:
            raise ProbeFailed(f"{where}: {what}: expected {asked}, found {found}")
    return fingerprint
