"""The script that checks the probe on a GPU, rehearsed on this CPU. Nothing here needs a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("check.py")
NUMERIC = ("ATEN_", "MKL_", "OMP_", "ONEDNN_", "DNNL_", "PYTHONHASHSEED", "CUDA_", "CUBLAS_")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC)}
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def check() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.torch
def test_a_rehearsal_on_a_cpu_tells_everything(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run("--device", "cpu", "--profile", "quick", "--output", tmp_path)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    checks = {check["what"]: check for check in report["checks"]}
    edited = (
        "digests differ; sections: source; stages: none"  # a working tree that is edited while it is tested
    )
    for mode in ("default", "strict"):
        check = checks[f"two runs in mode {mode} give one digest"]
        assert check["held"] or check["seen"] == edited
        for turn in (1, 2):
            document = json.loads((tmp_path / f"{mode}-{turn}.json").read_text())
            assert document["probe"]["mode"] == mode
    assert checks["every known answer is given"]["held"]
    assert checks["every error bound is kept"]["held"]
    assert done.returncode == (0 if report["held"] else 1)

    variants = {" ".join(variant["variables"]): variant for variant in report["variants"]}
    assert list(variants) == [
        "ATEN_CPU_CAPABILITY",
        "OMP_NUM_THREADS",
        "MKL_CBWR",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    ]
    assert variants["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]["not_tried"] == "a CPU has no SMs"
    for variant in variants.values():
        if variant["not_tried"] is None:
            assert set(variant["moved"]) == {
                *("gemm", "conv", "softmax", "norm", "attention", "reduction", "elementwise"),
                *("gather", "scatter", "sort"),
            }
            assert sum(some for some, _ in variant["moved"].values()) == len(variant["stages"])
            assert variant["moved"]["gather"][0] == variant["moved"]["sort"][0] == 0
    if report["class_key"].startswith("cpu: Intel") and os.cpu_count() != 1:
        assert all(variant["stages"] for variant in list(variants.values())[:3])

    names = [row["stage"] for row in report["attention"]["kernels"]]
    assert "kernel.attention.math.fp32" in names
    assert report["attention"]["chosen"] == "flash_attention"
    assert report["kernels"] == {}
    assert report["times"]["strict-2"]["parts"]["kernel"] > 0
    text = (tmp_path / "report.md").read_text()
    for heading in ("What each setting moves", "Attention", "Stages that are unstable: 0", "Seconds"):
        assert f"## {heading}" in text
    assert "| `MKL_CBWR=COMPATIBLE` |" in text


def test_help_teaches_and_a_wrong_option_is_refused() -> None:
    told = run("--help")
    assert told.returncode == 0
    assert "decides the exit code" in told.stdout
    assert "--device cpu --profile quick" in told.stdout
    assert run("--device", "tpu").returncode == 2


def stage(name: str, sha256: str | None, **more: Any) -> dict[str, Any]:
    blank = {"operator": "gemm", "state": "ok", "reason": None, "expected": None, "bound": None}
    return {**blank, "name": name, "sha256": sha256, **more}


def made(check: Any, folder: Path, **documents: Any) -> Any:
    """A checker of CUDA whose runs give `documents`: stages by name of the run; a word is a failure."""
    checker = check.Checker("cuda", "full", folder, 9)

    def probe(name: str, mode: str = "default", **variables: str) -> Any:
        given = documents.get(name.partition("=")[0].replace("-", "_"), documents["otherwise"])
        one = check.Run(name, 1.0, None, given) if isinstance(given, str) else check.Run(name, 1.0, None)
        if not isinstance(given, str):
            one.document = {
                "digest": json.dumps(given),
                "class_key": "cuda: H200, 132 SMs, mode default",
                "run": {"parts": []},
                "stages": given,
            }
        checker.runs.append(one)
        return one

    checker.probe = probe
    return checker


PLAIN = [stage("kernel.gemm", "a"), stage("kernel.attention.default.fp32", "b", operator="attention")]
MOVED = [stage("kernel.gemm", "c", kernels=["sm90|gemm"]), PLAIN[1]]


def test_two_digests_that_differ_do_not_hold(check: Any, tmp_path: Path) -> None:
    checker = made(check, tmp_path, otherwise=PLAIN, strict_2=MOVED)
    checker.equalities()
    assert [one.held for one in checker.checks] == [True, False]
    assert checker.checks[1].seen == "digests differ; sections: none; stages: kernel.gemm"
    assert check.summary(checker, checker.runs[0], [], [])["held"] is False


def test_a_probe_that_fails_does_not_hold(check: Any, tmp_path: Path) -> None:
    checker = made(check, tmp_path, otherwise="exit code 3: no usable GPU")
    checker.vary(checker.equalities())
    assert not any(one.held for one in checker.checks)
    assert checker.checks[0].seen.startswith("default-1: exit code 3: no usable GPU")
    assert {variant.not_tried for variant in checker.variants[:3]} == {"exit code 3: no usable GPU"}
    assert "# Check of the probe on cuda" in check.markdown(check.summary(checker, checker.runs[0], [], []))


def test_what_a_setting_moves_is_counted_by_class(check: Any, tmp_path: Path) -> None:
    checker = made(check, tmp_path, otherwise=PLAIN, CUBLAS_WORKSPACE_CONFIG=MOVED)
    base = checker.equalities()
    checker.vary(base)
    moved = {variant.variables.get("CUBLAS_WORKSPACE_CONFIG"): variant for variant in checker.variants}[
        ":16:8"
    ]
    assert moved.moved == {"attention": (0, 1), "gemm": (1, 1)}
    assert moved.stages == ["kernel.gemm"]
    assert checker.variants[-1].variables == check.SHARE_OF_SMS
    assert checker.variants[-1].not_tried is not None  # no daemon of MPS here


def test_no_variant_is_begun_without_time(check: Any, tmp_path: Path) -> None:
    checker = made(check, tmp_path, otherwise=PLAIN)
    base = checker.equalities()
    checker.end = 0
    checker.vary(base)
    assert {variant.not_tried for variant in checker.variants[:3]} == {"no time was left"}


def test_faults_and_memory_errors_do_not_hold(check: Any, tmp_path: Path) -> None:
    bad = [
        stage("invariant.sum", "a", expected="b"),
        stage("kernel.sum", "a", bound={"holds": False, "ratio": 7.0}),
    ]
    checker = made(check, tmp_path, otherwise=bad)
    checker.equalities()
    before, after = ([{check.MEMORY_ERRORS: count}] for count in ("0", "2"))
    checker.checks.clear()
    checker.faults(before, after)
    assert [one.held for one in checker.checks] == [False, False, False]
    assert checker.checks[0].seen.startswith("invariant.sum in default-1; ")
    assert "kernel.sum in strict-2: 7.0 times" in checker.checks[1].seen
    assert checker.checks[2].seen == "GPU 0: 0 before, 2 after"


def test_each_attention_kernel_is_held_against_the_one_that_is_picked(check: Any, tmp_path: Path) -> None:
    stages = [
        stage("kernel.attention.default.bf16", "a"),
        stage("kernel.attention.cudnn_attention.bf16", "a", kernels=["cudnn_sdpa|x"]),
        stage("kernel.attention.math.bf16", "b"),
        stage("kernel.attention.flash_attention.bf16", None, state="unavailable", reason="no kernel"),
    ]
    checker = made(check, tmp_path, otherwise=stages)
    report = check.summary(checker, checker.equalities(), [], [])
    assert [(row["equals_default"], row["reason"]) for row in report["attention"]["kernels"]] == [
        (True, None),
        (False, None),
        (None, "no kernel"),
    ]
    text = check.markdown(report)
    assert "`cudnn_sdpa\\|x`" in text
    assert "## GPU kernels behind 1 stages" in text
