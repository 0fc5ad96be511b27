"""Choosing and giving approvals."""

from __future__ import annotations

import json

import msgspec
import pytest

from reprokit.compare import compare
from reprokit.compare.baseline import approve, check_cell, match
from reprokit.errors import InvalidInput
from reprokit.model import canonical, reading
from reprokit.model.baseline import Baseline
from reprokit.model.fingerprint import Fingerprint
from tests.compare import builders
from tests.compare.builders import changed, fingerprint, moved


def approved(*fingerprints: Fingerprint) -> Baseline:
    baseline = None
    for one in fingerprints:
        baseline = approve(baseline, one, "cpu", "a reason").baseline
    assert baseline is not None
    return baseline


def test_a_match_says_which_approval() -> None:
    other = fingerprint(moved("kernel.gemm.fp32", 1e-6), driver__version="1")
    found = compare(approved(other, fingerprint()), fingerprint())
    assert found.verdict.state == "holds"
    assert (found.base.cell, found.base.approval, found.base.exact) == ("cpu", 1, True)


def test_without_a_match_the_strictest_level_wins_then_the_nearest_environment() -> None:
    far = fingerprint(moved("kernel.gemm.fp32", 1e-1))
    near = fingerprint(moved("kernel.gemm.fp32", 1e-7), driver__version="1", cpu__microcode="2")
    found = compare(approved(far, near), fingerprint())
    assert (found.base.approval, found.base.exact) == (1, False)
    assert found.verdict.level == "process"
    nearest = fingerprint(moved("kernel.gemm.fp32", 2e-7), driver__version="1")
    found = compare(approved(far, near, nearest), fingerprint())
    assert found.base.approval == 2


@pytest.mark.parametrize(
    ("change", "known", "words"),
    [
        ({"class_key": "gpu: another, mode default"}, None, "none for gpu: another"),
        ({"probe__profile": "quick"}, "cpu: Example CPU, AVX512_CORE, mode default", "profile quick"),
        (
            {"probe__mode": "strict", "class_key": "cpu: Example CPU, AVX512_CORE, mode strict"},
            "cpu: Example CPU, AVX512_CORE, mode strict",
            "mode strict",
        ),
    ],
)
def test_nothing_approved_for_this_hardware_or_way_of_running(
    change: dict[str, str], known: str | None, words: str
) -> None:
    found = compare(approved(fingerprint()), fingerprint(**change))
    assert found.verdict.state == "no_baseline"
    assert (found.base.source, found.base.cell, found.base.approval) == ("baseline", "cpu", None)
    assert (found.base.exact, found.base.digest, found.base.class_key) == (False, None, known)
    assert found.diagnosis.class_ is None
    assert words in found.diagnosis.reason
    assert ("profile full" if known else "Example CPU") in found.warnings[0]
    assert not any(level.holds for level in found.levels)


def test_a_missed_answer_is_said_without_a_baseline() -> None:
    head = fingerprint(changed("invariant.gemm", sha256=builders.sha("x")), class_key="new")
    found = compare(approved(fingerprint()), head)
    assert any("misses its known answer" in warning for warning in found.warnings)


def test_approving_appends_and_is_idempotent() -> None:
    first = approve(None, fingerprint(), "cpu", None)
    assert (first.index, first.already) == (0, False)
    second = approve(first.baseline, fingerprint(driver__version="1"), "cpu", "new driver")
    assert (second.index, second.already) == (1, False)
    again = approve(second.baseline, fingerprint(), "cpu", "another reason")
    assert (again.index, again.already) == (0, True)
    assert again.baseline is second.baseline
    assert [approval.reason for approval in second.baseline.approvals] == [None, "new driver"]


def test_another_commit_adds_nothing_and_another_probe_does() -> None:
    before = approved(fingerprint())
    commit = fingerprint(
        source__commit=None,
        source__dirty=True,
        absent=[{"field": "source.commit", "state": "unavailable", "reason": "no repository"}],
        run__started="2026-02-02T00:00:00Z",
    )
    assert commit.digest != before.approvals[0].fingerprint.digest
    assert approve(before, commit, "cpu").already
    assert not approve(before, fingerprint(source__probe_sha256=builders.sha("new")), "cpu").already


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "unstable", "reason": "2 results"}, "kernel.gemm.fp32 is unstable: 2 results"),
        ({"expected": builders.sha("right")}, "misses its known answer"),
        ({"bound": {"ratio": 7.0, "holds": False}}, "breaks its bound: its error is 7 times"),
        ({"bound": {"ratio": 7.0, "holds": True}}, "breaks its bound: its error is 7 times"),
        ({"bound": {"ratio": "float:nan", "holds": True}}, "breaks its bound: its error is NaN times"),
    ],
)
def test_wrong_numbers_cannot_be_approved(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        approve(None, fingerprint(changed("kernel.gemm.fp32", **fields)), "cpu")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_metrics_that_are_no_numbers_cannot_be_approved(value: float) -> None:
    one = fingerprint(metrics=[builders.metric(numbers=[0.9] * 4 + [value])])
    with pytest.raises(InvalidInput, match="metric digits.accuracy has a value that is not finite"):
        approve(None, one, "cpu")


def test_what_contradicts_itself_cannot_be_approved() -> None:
    with pytest.raises(InvalidInput, match="/metrics/0/values: expected one for each of 5 seeds, found 2"):
        approve(None, fingerprint(metrics=[builders.metric(numbers=[0.9, 0.8])]), "cpu")


def test_another_cell_s_baseline_is_refused() -> None:
    with pytest.raises(InvalidInput, match="/cell: expected gpu, found cpu"):
        approve(approved(fingerprint()), fingerprint(driver__version="1"), "gpu")


def test_a_reason_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no valid one"):
        approve(None, fingerprint(), "cpu", "x" * 2001)


def test_the_number_of_approvals_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprokit.compare.baseline.MOST_APPROVALS", 1)
    with pytest.raises(InvalidInput, match="remove old ones"):
        approve(approved(fingerprint()), fingerprint(driver__version="1"), "cpu")


@pytest.mark.parametrize("cell", ["", "../x", "a/b", ".hidden", "a\n", "a b", "x" * 121, "\x1b[31m"])
def test_names_that_are_no_names(cell: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_cell(cell)
    assert str(caught.value).isprintable()


def test_infinite_numbers_are_kept() -> None:
    one = fingerprint(changed("kernel.gemm.fp32", content=[float("inf"), 1.0]))
    assert msgspec.to_builtins(approved(one).approvals[0].fingerprint) == msgspec.to_builtins(one)


def test_a_fingerprint_that_would_change_by_being_written_again_is_refused() -> None:
    raw = msgspec.to_builtins(builders.fingerprint())
    raw["probe"]["loaded"] = 0  # the default, spelled out, is part of this document's own digest
    spelled = msgspec.convert(canonical.sealed(raw), Fingerprint)
    with pytest.raises(InvalidInput, match="spells out keys that say nothing"):
        approve(None, spelled, "cpu")


def test_stages_and_keys_that_came_later_leave_an_approval_its_meaning() -> None:
    before = approve(None, builders.fingerprint(), "cpu").baseline
    grown = builders.fingerprint(
        [*builders.trace(), builders.stage("batch.norm.alone.fp32", "norm", races="torch.cumsum")],
        probe__loaded=1,
        torch__attention__chosen="flash_attention",
    )
    found = match(before, grown)
    assert (found.verdict.state, found.verdict.level) == ("holds", "bit")
    assert "1 stage is new: nothing is approved for it: batch.norm.alone.fp32" in found.warnings
    both = approve(before, grown, "cpu").baseline
    assert both.approvals[0].fingerprint.digest == before.approvals[0].fingerprint.digest
    written = canonical.encode(msgspec.to_builtins(both))
    assert reading.digest_problem(json.loads(written)) is None
