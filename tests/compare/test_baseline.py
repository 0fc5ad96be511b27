"""Choosing and giving approvals."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reprokit.compare import compare
from reprokit.compare.baseline import approve, check_cell
from reprokit.errors import InvalidInput
from reprokit.model.baseline import Baseline
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.reading import read
from tests.compare import builders
from tests.compare.builders import changed, fingerprint, moved


def approved(folder: Path, *fingerprints: Fingerprint) -> Baseline:
    path = folder / "cpu.json"
    for one in fingerprints:
        approve(path, one, "cpu", "a reason")
    return read(path, Baseline)


def test_a_match_says_which_approval(tmp_path: Path) -> None:
    other = fingerprint(moved("kernel.gemm.fp32", 1e-6), driver__version="1")
    found = compare(approved(tmp_path, other, fingerprint()), fingerprint())
    assert found.verdict.state == "holds"
    assert found.base is not None
    assert (found.base.cell, found.base.approval, found.base.exact) == ("cpu", 1, True)


def test_without_a_match_the_strictest_level_wins_then_the_nearest_environment(tmp_path: Path) -> None:
    far = fingerprint(moved("kernel.gemm.fp32", 1e-1))
    near = fingerprint(moved("kernel.gemm.fp32", 1e-7), driver__version="1", cpu__microcode="2")
    found = compare(approved(tmp_path, far, near), fingerprint())
    assert found.base is not None
    assert (found.base.approval, found.base.exact) == (1, False)
    assert found.verdict.level == "process"
    nearest = fingerprint(moved("kernel.gemm.fp32", 2e-7), driver__version="1")
    found = compare(approved(tmp_path, nearest), fingerprint())
    assert found.base is not None
    assert found.base.approval == 2


@pytest.mark.parametrize(
    "change", [{"class_key": "gpu: another"}, {"probe__profile": "quick"}, {"probe__mode": "strict"}]
)
def test_nothing_approved_for_this_hardware_or_way_of_running(tmp_path: Path, change: dict[str, str]) -> None:
    found = compare(approved(tmp_path, fingerprint()), fingerprint(**change))
    assert found.verdict.state == "no_baseline"
    assert found.base is None
    assert found.diagnosis.class_ is None
    assert "reprokit baseline approve FINGERPRINT --cell cpu" in found.diagnosis.reason
    assert "Example CPU" in found.warnings[0]
    assert not any(level.holds for level in found.levels)


def test_a_missed_answer_is_said_without_a_baseline(tmp_path: Path) -> None:
    head = fingerprint(changed("invariant.gemm", sha256=builders.sha("x")), class_key="new")
    found = compare(approved(tmp_path, fingerprint()), head)
    assert any("misses its known answer" in warning for warning in found.warnings)


def test_approving_creates_appends_and_is_idempotent(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "cpu.json"
    first = approve(path, fingerprint(), "cpu", None)
    assert (first.index, first.already) == (0, False)
    second = approve(path, fingerprint(driver__version="1"), "cpu", "new driver")
    assert (second.index, second.already) == (1, False)
    before = path.read_bytes()
    again = approve(path, fingerprint(), "cpu", "another reason")
    assert (again.index, again.already) == (0, True)
    assert path.read_bytes() == before
    assert [approval.reason for approval in read(path, Baseline).approvals] == [None, "new driver"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "unstable", "reason": "2 results"}, "kernel.gemm.fp32 is unstable: 2 results"),
        ({"expected": builders.sha("right")}, "misses its known answer"),
        ({"bound": {"ratio": 7.0, "holds": False}}, "breaks its float64 bound by a factor of 7.0"),
    ],
)
def test_wrong_numbers_cannot_be_approved(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        approve(tmp_path / "cpu.json", fingerprint(changed("kernel.gemm.fp32", **fields)), "cpu")
    assert list(tmp_path.iterdir()) == []


def test_another_cell_s_file_is_refused(tmp_path: Path) -> None:
    approve(tmp_path / "cpu.json", fingerprint(), "cpu")
    with pytest.raises(InvalidInput, match="/cell: expected gpu, found cpu"):
        approve(tmp_path / "cpu.json", fingerprint(driver__version="1"), "gpu")


def test_a_reason_that_is_too_long_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no valid one"):
        approve(tmp_path / "cpu.json", fingerprint(), "cpu", "x" * 2001)
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_approvals_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprokit.compare.baseline.MOST_APPROVALS", 1)
    approve(tmp_path / "cpu.json", fingerprint(), "cpu")
    with pytest.raises(InvalidInput, match="remove old ones"):
        approve(tmp_path / "cpu.json", fingerprint(driver__version="1"), "cpu")


@pytest.mark.parametrize("cell", ["", "../x", "a/b", ".hidden", "a\n", "a b", "x" * 121, "\x1b[31m"])
def test_names_that_are_no_names(cell: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_cell(cell)
    assert str(caught.value).isprintable()


def test_infinite_numbers_survive_the_file(tmp_path: Path) -> None:
    one = fingerprint(metrics=[builders.metric(numbers=[float("inf")] * 5)])
    baseline = approved(tmp_path, one)
    assert msgspec.to_builtins(baseline.approvals[0].fingerprint) == msgspec.to_builtins(one)
