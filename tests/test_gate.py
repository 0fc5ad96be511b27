"""The verdict of a cell: what passes as neutral, which exit code, and what a probe's output must be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from reprokit import __version__, gate
from reprokit.compare import compare
from reprokit.compare.baseline import approve
from reprokit.environment.source import measuring_code
from reprokit.errors import InvalidInput, ProbeFailed
from reprokit.images.prepare import Prepared
from reprokit.images.recipes import builtin
from reprokit.model import canonical
from reprokit.model.comparison import Comparison
from reprokit.model.config import Cell, Config
from reprokit.report import summary
from reprokit.report.wording import Origin
from tests.compare.builders import changed, fingerprint, jittered, moved, numbers_of, sha

CELL = Cell(name="cpu")
COMMIT = "a" * 40
TOLD_IMAGE = {"name": "cuda-13.0", "digest": None, "recipe": sha("x"), "base": "b", "checked": True}
TOLD = {"image": None, "commit": "a" * 40, "dirty": False}
KERNEL = "kernel.softmax.fp32"


def config(on_external_change: str) -> Config:
    return msgspec.convert(
        {"version": 1, "cells": [{"name": "cpu"}], "on-external-change": on_external_change}, Config
    )


def external() -> Comparison:
    return compare(fingerprint(), fingerprint(moved(KERNEL), cpu__isa="AVX2"))


def test_a_drift_from_outside_is_neutral_where_the_configuration_says_so() -> None:
    assert external().diagnosis.caused_by_change == "no"
    assert gate.exit_code(config("fail"), external()) == 1
    assert gate.exit_code(config("neutral"), external()) == 0
    assert external().verdict.state == "drifted"


def test_what_the_change_may_have_caused_is_never_neutral() -> None:
    found = compare(fingerprint(), fingerprint(moved(KERNEL), variables__ATEN_CPU_CAPABILITY="avx2"))
    assert found.diagnosis.caused_by_change == "possible"
    assert gate.exit_code(config("neutral"), found) == 1


def test_a_neutral_drift_is_said_to_be_one() -> None:
    assert summary.NEUTRAL in summary.annotation(external(), neutral=True)
    assert "Neutral" not in summary.annotation(external(), neutral=False)
    measured = fingerprint(image=TOLD_IMAGE)
    shown = summary.section(CELL, measured, external(), Origin(), ["odd"], True)
    assert f"> {summary.NEUTRAL}\n\n- ⚠ odd\n\n### ✗ drifted: this change cannot have caused it" in shown


def test_what_holds_at_no_level_is_never_neutral() -> None:
    content = jittered(numbers_of(KERNEL), 1e-7)
    broken = changed(KERNEL, content=content, bound={"ratio": 3.5, "holds": False})
    found = compare(fingerprint(), fingerprint(broken, cpu__isa="AVX2"))
    assert (found.verdict.level, found.diagnosis.caused_by_change) == ("none", "no")
    assert gate.exit_code(config("neutral"), found) == 1


@pytest.mark.parametrize("on_external_change", ["fail", "neutral"])
def test_a_cell_without_baseline_fails_with_5_whatever_is_neutral(on_external_change: str) -> None:
    measured = gate.Measured(b"", fingerprint(), [])
    found = gate.judge(None, CELL, measured)
    assert gate.exit_code(config(on_external_change), found) == 5
    assert found.base.cell == "cpu"


def document(**changes: object) -> bytes:
    """A probe's output."""
    here = {"source__reprokit": __version__, "source__probe_sha256": measuring_code()}
    made = fingerprint(**{**here, **changes})  # type: ignore[arg-type]
    return canonical.encode(msgspec.to_builtins(made))


def test_the_output_of_a_probe_is_a_fingerprint_of_what_was_asked_for() -> None:
    assert gate.validated(document(), CELL, TOLD).class_key == fingerprint().class_key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"probe__profile": "quick"}, "/probe/profile: expected full, found quick"),
        ({"probe__device": "cuda"}, "/probe/device: expected cpu, found cuda"),
        ({"probe__mode": "strict"}, "/probe/mode: expected default, found strict"),
        ({"seeds__base": 7}, "/seeds/base: expected 0, found 7"),
        ({"source__commit": "b" * 40}, f"/source/commit: expected {'a' * 40}, found {'b' * 40}"),
        ({"source__dirty": True}, "/source/dirty: expected False, found True"),
        ({"source__reprokit": "0.0.1"}, f"/source/reprokit: expected {__version__}, found 0.0.1"),
        (
            {"source__probe_sha256": sha("x")},
            f"/source/probe_sha256: expected {measuring_code()}, found {sha('x')}",
        ),
        ({"logit_hash": None}, "/logit_hash"),
        (
            {"image": {"name": "ours", "digest": None, "recipe": None, "base": None, "checked": True}},
            "/image",
        ),
    ],
)
def test_the_output_of_another_run_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ProbeFailed, match="the probe's output: ") as refused:
        gate.validated(document(**changes), CELL, TOLD)
    assert words in str(refused.value)


@pytest.mark.parametrize("output", [b"", b"{}", b"[1, 2", b'{"document": "fingerprint"}'])
def test_what_is_no_fingerprint_is_a_failure_of_the_probe(output: bytes) -> None:
    with pytest.raises(ProbeFailed, match="the probe's output: "):
        gate.validated(output, CELL, TOLD)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def test_an_old_driver_is_a_warning_and_where_the_run_fails_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell(name="gpu", image="cuda-13.0", device="cuda")
    asked: list[list[str]] = []

    def run(client: object, job: object, image: str, limits: object, gpus: list[str], *rest: object) -> bytes:
        asked.append(gpus)
        if cell.profile == "quick":
            raise ProbeFailed("the probe finds no GPU")
        return document(probe__device="cuda", image=TOLD_IMAGE, source__commit=COMMIT, source__dirty=False)

    monkeypatch.setattr("reprokit.engines.gpus.driver_version", lambda: "570.1")
    monkeypatch.setattr("reprokit.engines.docker.connected", nothing)
    monkeypatch.setattr("reprokit.engines.docker.sweep", lambda client: [])
    monkeypatch.setattr("reprokit.images.prepare.prepare", lambda *_: Prepared("id", "python", TOLD_IMAGE))
    monkeypatch.setattr("reprokit.engines.container.run", run)
    monkeypatch.setattr("reprokit.environment.source.state", lambda absences: (COMMIT, False))
    measured = gate.measure(cell, builtin(), lambda line: None)
    words = "the NVIDIA driver of this machine is 570.1, the image needs 580.65.06 or newer"
    assert [warning.partition(":")[0] for warning in measured.warnings] == [words]
    cell = Cell(name="gpu", image="cuda-13.0", device="cuda", profile="quick")
    with pytest.raises(ProbeFailed, match=rf"{words}.* \(the probe finds no GPU\)"):
        gate.measure(cell, builtin(), lambda line: None)
    assert asked == [["all"], ["all"]]


def test_a_baseline_of_another_cell_is_refused(tmp_path: Path) -> None:
    assert gate.approved(tmp_path, "cpu") is None
    made = approve(None, fingerprint(), "other").baseline
    (tmp_path / "cpu.json").write_bytes(canonical.encode(msgspec.to_builtins(made)))
    with pytest.raises(InvalidInput, match="/cell: expected cpu, found other"):
        gate.approved(tmp_path, "cpu")


def judged(mode: Literal["default", "strict"], found: Comparison) -> gate.Judged:
    measured = gate.Measured(mode.encode(), fingerprint(), [])
    return gate.Judged(Cell(name="cpu", mode=mode), measured, found)


def test_a_cell_with_both_modes_runs_them_one_after_the_other() -> None:
    cell = Cell(name="cpu", mode="both", level="process", seed=3)
    found = gate.by_mode(cell)
    assert [one.mode for one in found] == ["default", "strict"]
    assert {(one.name, one.level, one.seed) for one in found} == {("cpu", "process", 3)}
    for mode in ("default", "strict"):
        assert gate.by_mode(Cell(name="cpu", mode=mode)) == [Cell(name="cpu", mode=mode)]


@pytest.mark.parametrize("mode", ["default", "strict"])
def test_the_probe_is_told_the_mode(mode: Literal["default", "strict"]) -> None:
    arguments = gate._job(Cell(name="cpu", mode=mode), "python", {}).arguments
    assert arguments[arguments.index("--mode") + 1] == mode
    assert arguments[arguments.index("--seed") + 1] == "0"


HOLDS = compare(fingerprint(), fingerprint())
DRIFTED = compare(fingerprint(), fingerprint(moved(KERNEL)))
INVALID = compare(fingerprint(), fingerprint(probe__profile="quick"))
MISSING = gate.judge(None, CELL, gate.Measured(b"", fingerprint(), []))


@pytest.mark.parametrize(
    ("default", "strict", "decides", "code"),
    [
        (HOLDS, HOLDS, "default", 0),
        (HOLDS, DRIFTED, "strict", 1),
        (MISSING, DRIFTED, "strict", 1),
        (DRIFTED, MISSING, "default", 1),
        (HOLDS, MISSING, "strict", 5),
        (DRIFTED, INVALID, "strict", 2),
        (DRIFTED, DRIFTED, "default", 1),
    ],
)
def test_the_worse_mode_decides(default: Comparison, strict: Comparison, decides: str, code: int) -> None:
    found = gate.worst(config("fail"), [judged("default", default), judged("strict", strict)])
    assert found.cell.mode == decides
    assert gate.exit_code(config("fail"), found.comparison) == code


def test_a_drift_that_passes_is_worse_than_none_and_better_than_no_baseline() -> None:
    passes = external()
    for other, decides, code in ((HOLDS, "default", 0), (MISSING, "strict", 5), (DRIFTED, "strict", 1)):
        found = gate.worst(config("neutral"), [judged("default", passes), judged("strict", other)])
        assert (found.cell.mode, gate.exit_code(config("neutral"), found.comparison)) == (decides, code)
