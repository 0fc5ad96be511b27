"""`reprokit baseline` as a user runs it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from reprokit.cli.baseline import approve_in_file, baseline_group
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.baseline import Baseline
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.reading import read
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


def test_another_commit_adds_nothing_and_it_is_said(tmp_path: Path) -> None:
    head = written(tmp_path / "head.json", fingerprint())
    invoke("approve", head, "--cell", "cpu")
    path = Path(".reprokit/baselines/cpu.json")
    before = path.read_bytes()
    later = written(tmp_path / "later.json", fingerprint(source__commit="b" * 40, source__dirty=True))
    assert invoke("approve", later, "--cell", "cpu").output == (
        f"these numbers in this environment are already approved as approval 0 of cell cpu: {path} is unchanged\n"
    )
    assert path.read_bytes() == before


def test_a_baseline_that_nobody_could_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu.json"
    approve_in_file(path, fingerprint(), "cpu")
    before = path.read_bytes()
    monkeypatch.setattr("reprokit.model.reading.MAX_BYTES", len(before) + 1000)
    with pytest.raises(InvalidInput, match="larger than .* remove old approvals"):
        approve_in_file(path, fingerprint(cpu__isa="AVX2"), "cpu")
    assert path.read_bytes() == before


def test_another_cell_s_file_is_refused(tmp_path: Path) -> None:
    approve_in_file(tmp_path / "cpu.json", fingerprint(), "cpu")
    with pytest.raises(InvalidInput, match="cpu.json: /cell: expected gpu, found cpu"):
        approve_in_file(tmp_path / "cpu.json", fingerprint(cpu__isa="AVX2"), "gpu")


def test_approvals_at_once_do_not_lose_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fcntl")
    write = canonical.write_file

    def slowly(path: Path, data: bytes) -> None:
        time.sleep(0.05)  # long enough that whoever does not wait has read the same old file
        write(path, data)

    monkeypatch.setattr(canonical, "write_file", slowly)
    path = tmp_path / "cpu.json"
    heads = [fingerprint(cpu__microcode=str(number)) for number in range(6)]
    with ThreadPoolExecutor(len(heads)) as pool:
        done = list(pool.map(lambda head: approve_in_file(path, head, "cpu"), heads))
    assert sorted(approved.index for approved in done) == list(range(6))
    assert len(read(path, Baseline).approvals) == 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["cpu.json"]
