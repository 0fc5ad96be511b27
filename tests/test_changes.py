"""What really changes an environment, measured on this machine, and what the comparison must say of each.

Each case is a real probe in a process whose environment differs in one thing, with both profiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
LOWER_ATEN = {"AVX512": "avx2", "AVX2": "default", "SVE256": "default", "NO AVX": None, "DEFAULT": None}
LOWER_ONEDNN = {
    "avx512": "AVX2",
    "avx2": "SSE41",
    "avx": "SSE41",
}  # by the first word of the hardware's level
NUMPY = "2.2.6"
FULL_PROBES = int(
    os.environ.get("REPROKIT_FULL_PROBES", "4")
)  # thirty take a quarter of an hour on two cores


def compare(run, base: Path, head: Path, *options: str) -> tuple[int, dict]:
    done = run("compare", base, head, "--format", "json", *options)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def moved(comparison: dict) -> set[str]:
    """Operator classes of the kernels that moved."""
    return {
        stage["operator"]
        for stage in comparison["stages"]
        if stage["equal"] is False and stage["name"].startswith("kernel.")
    }


def assert_jitter_of_the_environment(code: int, comparison: dict, variable: str) -> None:
    assert code == 1
    assert comparison["verdict"] == {
        "level": "process",
        "required": "bit",
        "holds": False,
        "state": "drifted",
    }
    assert comparison["diagnosis"]["class"] == "environment"
    fields = [change["field"] for change in comparison["environment"]]
    assert f"variables.{variable}" in fields[:2]
    assert comparison["environment"][0]["relevance"] == "likely"
    assert [
        stage["name"]
        for stage in comparison["stages"]
        if stage["kind"] == "invariant" and stage["equal"] is False
    ] == []


@pytest.fixture(scope="session")
def machine(measure) -> dict:
    return json.loads(measure("quick").read_text())


@pytest.mark.parametrize("profile", ["quick", "full"])
class TestVariables:
    def test_one_isa_level_less_in_aten(self, run, measure, machine, profile):
        lower = LOWER_ATEN.get(machine["torch"]["cpu_capability"])
        if lower is None:
            pytest.skip(f"nothing below {machine['torch']['cpu_capability']}")
        head = measure(profile, ATEN_CPU_CAPABILITY=lower)
        code, comparison = compare(run, measure(profile), head)
        assert_jitter_of_the_environment(code, comparison, "ATEN_CPU_CAPABILITY")
        first = comparison["environment"][0]
        assert first["field"] in ("variables.ATEN_CPU_CAPABILITY", "torch.cpu_capability")
        assert {"softmax", "attention"} & moved(comparison)
        assert "gemm" not in moved(comparison)
        assert "gemm" not in comparison["diagnosis"]["operators"]
        assert compare(run, measure(profile), head, "--level", "process")[0] == 0

    def test_one_thread_for_two(self, run, measure, machine, profile):
        if machine["torch"]["num_threads"] == 1:
            pytest.skip("this machine has one core")
        code, comparison = compare(run, measure(profile), measure(profile, OMP_NUM_THREADS="1"))
        assert_jitter_of_the_environment(code, comparison, "OMP_NUM_THREADS")
        assert {"reduction", "gemm"} & moved(comparison)
        assert not {"softmax", "elementwise", "norm"} & moved(comparison)

    def test_mkl_compatible(self, run, measure, machine, profile):
        if machine["torch"]["mkl_cbwr"] is None:
            pytest.skip("this torch has no MKL")
        code, comparison = compare(run, measure(profile), measure(profile, MKL_CBWR="COMPATIBLE"))
        assert_jitter_of_the_environment(code, comparison, "MKL_CBWR")
        assert {"gemm", "attention"} <= moved(comparison)
        assert "torch.mkl_cbwr" in [change["field"] for change in comparison["environment"]]

    def test_a_lower_isa_in_onednn(self, run, measure, machine, profile):
        lower = LOWER_ONEDNN.get(machine["cpu"]["isa"].partition("_")[0])
        if lower is None:
            pytest.skip(f"nothing known below {machine['cpu']['isa']}")
        code, comparison = compare(run, measure(profile), measure(profile, ONEDNN_MAX_CPU_ISA=lower))
        assert_jitter_of_the_environment(code, comparison, "ONEDNN_MAX_CPU_ISA")
        assert {"gemm", "conv", "elementwise"} & moved(comparison)
        assert not {"softmax", "reduction", "norm"} & moved(comparison)

    def test_another_seed(self, run, measure, profile):
        code, comparison = compare(run, measure(profile), measure(profile, "--seed", "1"))
        assert code == 1
        assert comparison["diagnosis"]["class"] == "statistical"
        assert comparison["environment"][0]["field"] == "seeds.base"
        moved_by_seed = {stage["name"] for stage in comparison["stages"] if stage["equal"] is False}
        assert all(name.startswith(("rng.", "sampling.", "training.", "metrics.")) for name in moved_by_seed)
        assert {"rng.torch_normal", "rng.after.kernel", "metrics.digits.losses"} <= moved_by_seed
        assert comparison["verdict"]["level"] == "conclusion"
        assert (
            compare(run, measure(profile), measure(profile, "--seed", "1"), "--level", "conclusion")[0] == 0
        )

    def test_another_numpy(self, run, measure, machine, profile, other_numpy):
        code, comparison = compare(run, measure(profile), measure(profile, PYTHONPATH=str(other_numpy)))
        assert code == 1
        assert comparison["verdict"]["level"] == "process"
        assert comparison["diagnosis"]["class"] == "environment"
        first = comparison["environment"][0]
        assert first["field"] in ("packages.numpy", "numpy.version")
        assert (first["base"], first["head"]) == (machine["packages"]["numpy"], NUMPY)
        assert "packages.numpy" in [change["field"] for change in comparison["environment"][:2]]
        differing = {stage["name"] for stage in comparison["stages"] if stage["equal"] is False}
        assert differing
        assert all(name.startswith("kernel.numpy_") for name in differing)

    def test_nothing(self, run, measure, profile):
        code, comparison = compare(run, measure(profile), measure(profile, again=1))
        assert code == 0
        assert comparison["verdict"] == {"level": "bit", "required": "bit", "holds": True, "state": "holds"}
        assert all(change["field"].startswith("run.") for change in comparison["environment"])
        assert comparison["diagnosis"]["class"] is None
        assert all(stage["equal"] for stage in comparison["stages"] if stage["state"] != "unavailable")


@pytest.fixture(scope="session")
def other_numpy(tmp_path_factory, machine) -> Path:
    """A folder with another NumPy and nothing else."""
    if machine["packages"]["numpy"] == NUMPY:
        pytest.skip(f"NumPy {NUMPY} is the installed one")
    folder = tmp_path_factory.mktemp("numpy")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--target",
        str(folder),
        f"numpy=={NUMPY}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "probes", "at_once"), [("quick", 20, 4), ("full", FULL_PROBES, 3)])
def test_many_probes_under_load_raise_no_alarm(run, measure, tmp_path, profile, probes, at_once):
    """Several at once on whatever cores there are, and one by itself before each wave."""
    base = measure(profile)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ATEN_", "MKL_", "OMP_", "ONEDNN_"))
    }
    paths = [tmp_path / f"{number}.json" for number in range(probes)]
    for first in range(0, probes, at_once + 1):
        wave = paths[first : first + at_once + 1]
        for group in (wave[:1], wave[1:]):
            running = [
                subprocess.Popen(
                    [sys.executable, "-m", "reprokit", "probe", "-o", path, "--profile", profile],
                    env=environment,
                    stderr=subprocess.DEVNULL,
                )
                for path in group
            ]
            assert [probe.wait() for probe in running] == [0] * len(group)
    for path in paths:
        code, comparison = compare(run, base, path)
        assert (code, comparison["verdict"]["level"]) == (0, "bit")
        assert comparison["head"]["digest"] == comparison["base"]["digest"]
