"""GPUs and driver, read from a stand-in for the driver's library in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml")

FAKE = Path(__file__).with_name("fake_nvml.c")
READ = """
import json
from reprokit.environment import driver, gpu, nvml
from reprokit.environment.absence import Absences
absences = Absences()
with nvml.connected() as session:
    gpus = gpu.collect(absences, session, {detail!r})
    section = driver.collect(absences, session, {{}}, {detail!r})
print(json.dumps({{"gpus": gpus, "driver": section, "absent": absences.entries()}}))
"""
Collected = dict[str, Any]
Read = Callable[..., Collected]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """What is collected with the stand-in built with `options`; without any, no driver is installed."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")

    def collected(*options: str, detail: str = "private") -> Collected:
        if options:
            library = tmp_path / "libnvidia-ml.so.1"
            subprocess.run(
                ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", library, FAKE], check=True
            )
        done = subprocess.run(
            [sys.executable, "-c", READ.format(detail=detail)],
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    return collected


def reason(collected: Collected, field: str) -> str | None:
    return next((entry["reason"] for entry in collected["absent"] if entry["field"] == field), None)


def test_every_field_of_one_gpu(read: Read) -> None:
    collected = read("-DGPUS=1")
    assert collected["gpus"] == [
        {
            "index": 0,
            "cuda_index": None,
            "name": "NVIDIA H200",
            "compute_capability": "9.0",
            "sm_count": 132,
            "max_threads_per_sm": 2048,
            "memory_bytes": 150754820096,
            "ecc": {"current": True, "pending": False},
            "mig": {"mode": False, "profile": None, "sm_count": None},
            "persistence_mode": True,
            "power_limit_watts": 700.5,
            "nvlinks": 17,
            "nvswitch": True,
            "uuid": None,
            "pci_bus_id": None,
            "vbios": None,
        }
    ]
    assert collected["driver"]["version"] == "580.65.06"
    assert collected["driver"]["cuda_api"] == "13.1"
    assert reason(collected, "driver.libcuda_version") == "libcuda is not loaded"


def test_identity_is_shown_only_with_full_detail(read: Read) -> None:
    private = read("-DGPUS=2")
    assert "8f3c0c2a" not in json.dumps(private)
    assert reason(private, "gpus[1].uuid") == "private by default: --detail full"
    full = read("-DGPUS=2", detail="full")["gpus"][1]
    assert full["uuid"] == "GPU-8f3c0c2a-0000-0000-0000-000000000001"
    assert full["pci_bus_id"] == "00000000:1C:00.0"
    assert full["vbios"] == "96.00.A5.00.01"


def test_a_partitioned_gpu_has_one_entry_per_instance(read: Read) -> None:
    first, second, whole = read("-DGPUS=2", "-DMIG")["gpus"]
    assert first["mig"] == {"mode": True, "profile": "1g.10gb", "sm_count": 16}
    assert second["mig"] == {"mode": True, "profile": "1c.2g.20gb", "sm_count": 14}
    assert [gpu["index"] for gpu in (first, second, whole)] == [0, 0, 1]
    assert {gpu["name"] for gpu in (first, second, whole)} == {"NVIDIA H200"}
    assert (first["sm_count"], first["memory_bytes"]) == (132, 10737418240)
    assert whole["mig"] == {"mode": False, "profile": None, "sm_count": None}


def test_an_old_driver_costs_only_the_fields_it_lacks(read: Read) -> None:
    collected = read("-DGPUS=1", "-DOLD_DRIVER")
    (gpu,) = collected["gpus"]
    assert (gpu["name"], gpu["max_threads_per_sm"], gpu["sm_count"]) == ("NVIDIA H200", 2048, None)
    assert reason(collected, "gpus[0].sm_count") == "the driver lacks nvmlDeviceGetNumGpuCores"
    assert reason(collected, "gpus[0].mig.mode") == "the driver lacks nvmlDeviceGetMigMode"
    assert reason(collected, "driver.cuda_api") == "the driver lacks nvmlSystemGetCudaDriverVersion_v2"
    assert collected["driver"]["version"] == "580.65.06"


def test_a_gpu_without_nvlink_has_none(read: Read) -> None:
    (gpu,) = read("-DGPUS=1", "-DNO_NVLINK")["gpus"]
    assert (gpu["nvlinks"], gpu["nvswitch"]) == (0, False)


def test_a_lost_gpu_is_one_entry_and_spares_the_others(read: Read) -> None:
    collected = read("-DGPUS=3", "-DLOST=1")
    assert [gpu["name"] for gpu in collected["gpus"]] == ["NVIDIA H200", None, "NVIDIA H200"]
    about_it = [entry for entry in collected["absent"] if entry["field"].startswith("gpus[1]")]
    assert about_it == [{"field": "gpus[1].*", "state": "unavailable", "reason": "NVML: the GPU is lost"}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "no NVIDIA driver: libnvidia-ml.so.1 not found"),
        (("-DINIT_ERROR=999",), "NVML: Unknown Error: the GPU or its control group is lost"),
        (("-DINIT_ERROR=18",), "the NVIDIA driver and its libraries differ in version"),
        (("-DINIT_ERROR=4711",), "NVML error 4711 of nvmlInitWithFlags"),
    ],
)
def test_without_nvml_one_entry_stands_for_all(read: Read, options: tuple[str, ...], expected: str) -> None:
    collected = read(*options)
    assert collected["gpus"] == []
    assert not any(collected["driver"].values())
    assert collected["absent"] == [
        {"field": "driver.*", "state": "unavailable", "reason": expected},
        {"field": "gpus", "state": "unavailable", "reason": expected},
    ]


def test_a_driver_without_gpus_says_so(read: Read) -> None:
    assert reason(read("-DGPUS=0"), "gpus") == "the NVIDIA driver shows no GPU to this process"
