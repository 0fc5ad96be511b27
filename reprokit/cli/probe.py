"""`reprokit probe`: run the canonical probe on this machine and write its fingerprint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from reprokit.model.fingerprint import Fingerprint


@click.command("probe")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the fingerprint goes.",
)
@click.option(
    "--profile",
    type=click.Choice(["quick", "full"]),
    default="full",
    show_default=True,
    help="quick: fewer shapes; full: every stage. The two cannot be compared with each other.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to measure.",
)
@click.option(
    "--mode",
    type=click.Choice(["default", "strict", "both"]),
    default="default",
    show_default=True,
    help="default: as users run; strict: seeds and every determinism switch of torch on, and what that costs in time; "
    "both: the two one after the other, each in a process and a file of its own.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 16),
    default=0,
    show_default=True,
    help="Seed of the random stages.",
)
@click.option(
    "--detail",
    type=click.Choice(["private", "full"]),
    default="private",
    show_default=True,
    help="full also records UUIDs, addresses, paths, every package and variable: for private repositories.",
)
@click.option("--list", "listing", is_flag=True, help="Measure nothing; print what there is to measure.")
@click.option("--json", "as_json", is_flag=True, help="With --list: as JSON.")
def probe_command(
    output: Path | None,
    profile: str,
    device: str,
    mode: str,
    seed: int,
    detail: str,
    listing: bool,
    as_json: bool,
) -> None:
    """Measure this machine and write its fingerprint.

    Every stage runs twice in one process, once more while other work keeps the machine busy, and once in a fresh
    process. Two runs on an unchanged machine, at one
    commit, give the same digest. Needs torch and numpy in this interpreter; nothing leaves the machine.

    A number that differs in mode default and not in mode strict differs by what `reprokit.seed_everything(seed)` rules
    out in a script of yours.

    \b
    reprokit probe -o fingerprint.json
    reprokit probe -o quick.json --profile quick
    reprokit probe -o now.json --mode both      writes now.default.json and now.strict.json
    ATEN_CPU_CAPABILITY=avx2 reprokit probe -o other.json
    reprokit probe --list                       each stage, and what can move it
    """
    from reprokit.errors import InvalidInput
    from reprokit.model import canonical

    if listing:
        _list(_run(["--list", "--profile", profile, "--device", device]), device, as_json)
        return
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output': where the fingerprint goes.")
    if as_json:
        raise click.UsageError("--json goes with --list: a fingerprint is JSON anyway.")
    files = _files(output, mode)
    for file in files.values():
        _check(file)
    for one, file in files.items():
        chosen = {"profile": profile, "device": device, "mode": one, "seed": str(seed), "detail": detail}
        data = _run([word for name, value in chosen.items() for word in (f"--{name}", value)])
        fingerprint = _validated(data)
        try:
            canonical.write_file(file, data)
        except OSError as error:
            raise InvalidInput(f"{file}: cannot be written: {error.strerror}") from error
        for line in _summary(fingerprint, file):
            click.echo(line, err=True)


def _list(told: bytes, device: str, as_json: bool) -> None:
    """Print what the probe side tells of its stages, with the fields that can move each."""
    import json

    from reprokit.report.stages import Listed, text

    stages = [Listed(**stage) for stage in json.loads(told)]
    if as_json:
        known = [{**vars(stage), "moved_by": stage.moved_by(device)} for stage in stages]
        click.echo(json.dumps(known, ensure_ascii=False, indent=2))
    else:
        for line in text(stages, device):
            click.echo(line)


def _files(output: Path, mode: str) -> dict[str, Path]:
    """By mode, the file of each fingerprint that is asked for."""
    if mode != "both":
        return {mode: output}
    return {one: output.with_name(f"{output.stem}.{one}{output.suffix}") for one in ("default", "strict")}


def _check(output: Path) -> None:
    """Nothing, where a file can be written; before the work.

    Raises:
        InvalidInput: it cannot.
    """
    from reprokit.errors import InvalidInput

    if not output.parent.is_dir():
        raise InvalidInput(f"{output}: the folder {output.parent} does not exist")
    if output.is_dir():
        raise InvalidInput(f"{output}: is a folder; name a file")
    # a file is replaced as a whole, which takes the right to write its folder; a pipe or device is written to
    replaced = output.is_file() or not output.exists()
    if not os.access(output.resolve().parent if replaced else output, os.W_OK):
        raise InvalidInput(f"{output}: no permission to write it")


def _run(arguments: list[str]) -> bytes:
    """The output of the probe side in this interpreter, its progress shown while it works."""
    from reprokit import launch
    from reprokit.cli.progress import shown
    from reprokit.engines.listening import Listener
    from reprokit.engines.local import heard

    with shown("importing torch") as say:
        return heard(launch.command("reprokit.probe", *arguments), Listener(say))


def _validated(data: bytes) -> Fingerprint:
    from reprokit.errors import InvalidInput, ProbeFailed
    from reprokit.model import reading
    from reprokit.model.fingerprint import Fingerprint

    try:
        return reading.decode(
            reading.parse_json(data, "the probe's output"), Fingerprint, "the probe's output", data
        )
    except InvalidInput as error:
        raise ProbeFailed(str(error)) from error


def _summary(fingerprint: Fingerprint, output: Path) -> Iterator[str]:
    states = [stage.state for stage in fingerprint.stages]
    counts = ", ".join(
        f"{states.count(state)} {state}"
        for state in ("ok", "blind", "unstable", "unavailable")
        if state in states
    )
    yield f"{output}: {len(states)} stages ({counts}) in {fingerprint.run.seconds:.1f} s"
    yield f"class key   {fingerprint.class_key}"
    yield f"logit hash  {fingerprint.logit_hash}"
    yield f"digest      {fingerprint.digest}"
    cost = fingerprint.run.mode_cost
    if cost is not None and cost.default_seconds:
        ratio = cost.strict_seconds / cost.default_seconds
        yield f"mode strict costs {ratio:.2f} × the time of default (kernels and one forward pass)"
    for stage in fingerprint.stages:
        if stage.state == "unstable":
            yield f"warning: {stage.name} is unstable: {stage.reason}"
        if stage.expected is not None and stage.sha256 != stage.expected:
            yield f"warning: {stage.name} misses its known answer: a broken kernel or machine"
        if stage.bound is not None and not stage.bound.holds:
            yield f"warning: {stage.name} is {stage.bound.ratio} times its error bound away from float64"
