"""What the two modes of a cell say together, and which fingerprints are such a pair."""

from __future__ import annotations

from typing import Any

import pytest

from reprokit.compare import compare
from reprokit.compare.baseline import approve
from reprokit.compare.modes import BOTH, ONLY_DEFAULT, ONLY_STRICT, meaning, no_pair
from reprokit.model.baseline import Baseline
from reprokit.model.comparison import Comparison, Level
from reprokit.model.fingerprint import Fingerprint
from tests.compare.builders import changed, fingerprint, moved

KERNEL = "kernel.softmax.fp32"
SWITCHED: dict[str, Any] = {
    "probe__mode": "strict",
    "class_key": "cpu: Example CPU, AVX512_CORE, mode strict",
    "torch__deterministic_algorithms": True,
    "torch__cudnn__deterministic": True,
    "variables__CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "variables__PYTHONHASHSEED": "0",
}


def strict(stages: list[dict[str, Any]] | None = None, **changes: Any) -> Fingerprint:
    """A fingerprint of mode strict on the machine of `fingerprint()`."""
    return fingerprint(stages, **SWITCHED, **changes)


@pytest.fixture(scope="module")
def baseline() -> Baseline:
    """Both modes, approved side by side."""
    return approve(approve(None, fingerprint(), "cpu").baseline, strict(), "cpu").baseline


def held(baseline: Baseline, head: Fingerprint, level: Level = "bit") -> Comparison:
    return compare(baseline, head, level)


@pytest.mark.parametrize(
    ("default_moved", "strict_moved", "words"),
    [(True, False, ONLY_DEFAULT), (False, True, ONLY_STRICT), (True, True, BOTH), (False, False, None)],
)
def test_which_mode_moved_says_where_to_search(
    baseline: Baseline, default_moved: bool, strict_moved: bool, words: str | None
) -> None:
    default = held(baseline, fingerprint(moved(KERNEL) if default_moved else None))
    other = held(baseline, strict(moved(KERNEL) if strict_moved else None))
    assert (default.base.approval, other.base.approval) == (0, 1), "each is held against its own mode"
    assert meaning(default, other) == words


def test_a_move_that_the_required_level_allows_is_one_too(baseline: Baseline) -> None:
    default = held(baseline, fingerprint(moved(KERNEL)), "process")
    assert default.verdict.state == "holds"
    assert meaning(default, held(baseline, strict(), "process")) == ONLY_DEFAULT


def test_where_one_mode_was_compared_with_nothing_nothing_follows() -> None:
    only = approve(None, fingerprint(), "cpu").baseline
    missing = held(only, strict())
    assert missing.verdict.state == "no_baseline"
    assert meaning(held(only, fingerprint(moved(KERNEL))), missing) is None


def test_the_words_name_what_to_do() -> None:
    assert "reprokit.seed_everything(seed)" in ONLY_DEFAULT
    assert "TF32" in ONLY_DEFAULT
    assert "Users in mode default are not affected" in ONLY_STRICT
    assert "not a matter of switches" in BOTH


def test_what_the_switches_set_makes_a_pair() -> None:
    assert no_pair(fingerprint(), strict()) is None
    assert no_pair(fingerprint(), strict(changed(KERNEL, version=2))) is None, "numbers are what is compared"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variables__OMP_NUM_THREADS": "1"}, "variables.OMP_NUM_THREADS is unset in the first and 1"),
        ({"probe__profile": "quick"}, "profile is full in the first and quick in the second"),
        ({"probe__version": 2}, "version is 1 in the first and 2"),
        ({"seeds__base": 7}, "seeds.base is 0 in the first and 7"),
        ({"source__commit": "b" * 40}, f"source.commit is {'a' * 40} in the first and {'b' * 40}"),
        ({"torch__version": "2.14.0"}, "torch.version is 2.13.0+cpu in the first and 2.14.0"),
        ({"cpu__model": "Other"}, "cpu.model is Example CPU in the first and Other"),
    ],
)
def test_anything_else_that_differs_makes_none(changes: dict[str, Any], words: str) -> None:
    problem = no_pair(fingerprint(), strict(**changes))
    assert problem is not None
    assert words in problem


def test_two_machines_make_no_pair() -> None:
    other = fingerprint(**{**SWITCHED, "class_key": "cpu: Other, AVX2, mode strict"})
    problem = no_pair(fingerprint(), other)
    assert problem is not None
    assert "hardware is cpu: Example CPU, AVX512_CORE in the first and cpu: Other, AVX2 in" in problem


def test_the_order_is_default_then_strict() -> None:
    assert no_pair(strict(), fingerprint()) == (
        "the first must be of mode default and the second of mode strict, found strict and default"
    )
    assert no_pair(fingerprint(), fingerprint()) is not None
