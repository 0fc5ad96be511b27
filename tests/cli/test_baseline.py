"""`reprokit baseline` as a user runs it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from reprokit.cli.baseline import approve_in_file, baseline_group
from reprokit.errors import InvalidInput
from reprokit.model import canonical, reading
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


def test_the_folder_is_locked_from_reading_to_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who approve at once wait for one another, so that neither overwrites what the other has added."""
    folder = tmp_path / "baselines"
    approve_in_file(folder / "cpu.json", fingerprint(), "cpu")
    held = []

    def tried(action: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(action.__name__)
            finally:
                os.close(descriptor)
            return action(*arguments)

        return call

    monkeypatch.setattr(reading, "read", tried(reading.read))
    monkeypatch.setattr(canonical, "write_file", tried(canonical.write_file))
    approve_in_file(folder / "cpu.json", fingerprint(torch__num_threads=1), "cpu")
    assert held == ["read", "write_file"]


def test_approvals_at_once_do_not_lose_each_other(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "cpu.json"
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: approve_in_file(path, fingerprint(torch__num_threads=n), "cpu"), range(1, 7)))
    threads = {approval.fingerprint.torch.num_threads for approval in read(path, Baseline).approvals}
    assert threads == set(range(1, 7))


def test_what_may_be_approved_by_mistake_is_warned_of(tmp_path: Path) -> None:
    invoke("approve", written(tmp_path / "a.json", fingerprint()), "--cell", "cpu")
    seed = invoke("approve", written(tmp_path / "b.json", fingerprint(seeds__base=7)), "--cell", "cpu")
    assert seed.exit_code == 0
    assert "warning: its seed is 7, that of all other approvals of this cell 0" in seed.stderr
    other = fingerprint(class_key="cpu: Another, avx2, mode default")
    hardware = invoke("approve", written(tmp_path / "c.json", other), "--cell", "cpu")
    assert "warning: its class of hardware is cpu: Another, avx2" in hardware.stderr
    threads = invoke(
        "approve", written(tmp_path / "d.json", fingerprint(torch__num_threads=1)), "--cell", "cpu"
    )
    assert "warning" not in threads.stderr


def test_cells_that_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    head = written(tmp_path / "a.json", fingerprint())
    invoke("approve", head, "--cell", "cpu")
    refused = invoke("approve", head, "--cell", "CPU")
    assert isinstance(refused.exception, InvalidInput)
    assert "there is cpu.json already, which differs only in case" in str(refused.exception)
