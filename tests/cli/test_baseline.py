"""`reprokit baseline` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from reprokit.cli.baseline import baseline_group
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.fingerprint import Fingerprint
from tests.compare import builders
from tests.compare.builders import changed, fingerprint


def written(path: Path, document: Fingerprint) -> Path:
    path.write_bytes(canonical.encode(msgspec.to_builtins(document)) + b"\n")
    return path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(baseline_group, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_approve_and_show(tmp_path: Path) -> None:
    head = written(tmp_path / "head.json", fingerprint(driver__version="580.1"))
    done = invoke("approve", head, "--cell", "gpu-h200", "--reason", "first\x1b[31m numbers")
    assert (
        done.output == f"added approval 0 of cell gpu-h200 to {Path('.reprokit/baselines/gpu-h200.json')}\n"
    )
    before = Path(".reprokit/baselines/gpu-h200.json").read_bytes()
    assert "already approved as approval 0" in invoke("approve", head, "--cell", "gpu-h200").output
    assert Path(".reprokit/baselines/gpu-h200.json").read_bytes() == before
    for arguments in ((), ("gpu-h200",), (Path(".reprokit/baselines/gpu-h200.json"),)):
        shown = invoke("show", *arguments)
        assert shown.exit_code == 0
        for words in (
            "gpu-h200",
            "Example CPU",
            "torch 2.13.0+cpu",
            "numpy 2.4.6",
            "cpu AVX512",
            "driver 580.1",
        ):
            assert words in shown.output
        assert "\\x1b[31m numbers" in shown.output
        assert "\x1b" not in shown.output


def test_nothing_to_show() -> None:
    assert "no baselines in .reprokit/baselines" in invoke("show").output


@pytest.mark.parametrize("cell", ["../escape", "a/b", "", ".git"])
def test_a_cell_cannot_leave_the_folder(tmp_path: Path, cell: str) -> None:
    head = written(tmp_path / "head.json", fingerprint())
    for arguments in (("approve", head, "--cell", cell), ("show", cell)):
        done = invoke(*arguments)
        assert isinstance(done.exception, InvalidInput)
    assert not Path(".reprokit").exists()


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    head = written(
        tmp_path / "head.json", fingerprint(changed("invariant.gemm", expected=builders.sha("right")))
    )
    done = invoke("approve", head, "--cell", "cpu")
    assert isinstance(done.exception, InvalidInput)
    assert "misses its known answer" in str(done.exception)
    assert not Path(".reprokit").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    head = written(tmp_path / "head.json", fingerprint())
    (tmp_path / "file").write_text("")
    done = invoke("approve", head, "--cell", "cpu", "--folder", "file/x")
    assert isinstance(done.exception, InvalidInput)


def test_help_teaches() -> None:
    assert (
        'reprokit baseline approve head.json --cell gpu-h100 --reason "' in invoke("approve", "--help").output
    )
