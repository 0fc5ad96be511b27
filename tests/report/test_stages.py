"""What the probe says of its stages before it runs, and the page that is made of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.report.stages import Listed, markdown, text

ROOT = Path(__file__).resolve().parents[2]
SOFTMAX = Listed(
    "kernel", "kernel.softmax.fp32", "sensitive", "softmax", 1, "reversed", None, "another kernel"
)
COMPILED = Listed(
    "kernel", "kernel.compiled.softmax.fp32", "sensitive", "softmax", 1, "reversed", None, "another compiler"
)
ANSWER = Listed("invariant", "invariant.sum", "invariant", "reduction", 2, None, None, "a wrong sum")
DRAWN = Listed(
    "sampling", "sampling.top_k.tokens", "sensitive", "rng", 1, "the next seed", None, "another text"
)
NUMPY = Listed(
    "kernel", "kernel.numpy_sum.fp32", "sensitive", "reduction", 1, "reversed", None, "another kernel"
)


def test_what_can_move_a_stage_follows_from_the_rules_of_the_comparison() -> None:
    fields = SOFTMAX.moved_by("cpu")
    assert fields[:2] == ["variables.ATEN_CPU_CAPABILITY", "torch.cpu_capability"]
    assert "packages.torch" in fields
    assert "variables.MKL_CBWR" not in fields
    assert "driver.version" not in fields
    assert "driver.version" not in SOFTMAX.moved_by("cuda")
    assert "driver.version" in COMPILED.moved_by("cuda")


def test_a_known_answer_is_moved_by_nothing_and_the_seed_moves_what_is_drawn() -> None:
    assert ANSWER.moved_by("cpu") == []
    assert DRAWN.moved_by("cpu")[0] == "seeds.base"
    assert "seeds.base" not in SOFTMAX.moved_by("cpu")


def test_the_library_of_a_stage_decides() -> None:
    assert "packages.numpy" in NUMPY.moved_by("cpu")
    assert "packages.numpy" not in SOFTMAX.moved_by("cpu")


def test_a_line_a_stage() -> None:
    head, line = text([ANSWER], "cpu")
    assert head.split() == ["stage", "kind", "class", "version", "can", "be", "moved", "by"]
    assert line.split(maxsplit=4) == [
        "invariant.sum",
        "invariant",
        "reduction",
        "2",
        "nothing: a known answer",
    ]


def test_the_page_groups_by_part_and_by_what_is_caught() -> None:
    page = markdown([ANSWER, SOFTMAX, NUMPY], {"invariant": "Known.", "kernel": "Alone."}, "cpu")
    assert page.index("## invariant") < page.index("## kernel") < page.index("## What can move")
    assert page.count("**Catches** another kernel.") == 1
    assert "| `kernel.numpy_sum.fp32` | sensitive | reduction | 1 | reversed |" in page


@pytest.fixture(scope="module")
def told() -> list[dict]:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "reprokit", "probe", "--list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.torch
def test_the_committed_pages_are_fresh() -> None:
    done = subprocess.run([sys.executable, ROOT / "bin" / "generate-docs", "--check"], check=False)
    assert done.returncode == 0, "a page of docs/ is stale: run bin/generate-docs"


@pytest.mark.torch
def test_every_stage_tells_what_it_catches_and_what_shows_that_it_can_move(told, measure) -> None:
    assert {stage["part"] for stage in told} == {
        "invariant", "rng", "data", "weights", "quantize", "layers", "kernel", "batch", "sampling", "training",
        "collective", "metrics",
    }  # fmt: skip
    assert all(stage["about"] for stage in told)
    measured = {stage["name"]: stage for stage in json.loads(measure("full").read_text())["stages"]}
    lacking = [
        stage["name"]
        for stage in told
        if (stage["control"] is None) != (stage["kind"] == "invariant")
        and measured[stage["name"]]["state"] != "unavailable"  # it is told where it can run
    ]
    assert lacking == []
    assert {stage["name"] for stage in told if stage["version"] != 1} == {"logits"}


@pytest.mark.torch
def test_the_list_is_what_a_full_probe_measures(told, measure) -> None:
    fingerprint = json.loads(measure("full").read_text())
    assert [stage["name"] for stage in fingerprint["stages"]] == [stage["name"] for stage in told]
