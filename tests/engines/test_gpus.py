"""Device requests, and the texts of engines, toolkits and drivers that mean a fault of the machine."""

from __future__ import annotations

import pytest

from reprokit.engines import gpus

PREFIX = "failed to create task for container: failed to create shim task: OCI runtime create failed: "
SINCE_DOCKER = "could not select device driver"
RECORDED = [
    (f'{SINCE_DOCKER} "" with capabilities: [[gpu]]', "install the NVIDIA container toolkit"),
    (f'{SINCE_DOCKER} "cdi" with capabilities: []', "the feature `cdi`"),
    (
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7",
        "nvidia-ctk cdi generate",
    ),
    (f"{PREFIX}error injecting CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "nvidia-ctk cdi"),
    (
        f"{PREFIX}nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your "
        "driver to a newer version, or use an earlier cuda container: unknown",
        "is older than the image needs",
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old; CUDA error: CUDA driver version is insufficient "
        "for CUDA runtime version",
        "is older than the image needs",
    ),
    (f"{PREFIX}nvidia-container-cli: device error: GPU-0: unknown device: unknown", "has no such GPU"),
    ("Failed to initialize NVML: Unknown Error", "does not answer"),
    (
        f"{PREFIX}nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "does not answer",
    ),
    ("RuntimeError: CUDA error: no CUDA-capable device is detected", "finds no GPU"),
    ("--device cuda: torch finds no usable GPU in this process", "finds no GPU"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", "failed in the middle of the run"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "failed in the middle of the run"),
    (
        f"{PREFIX}nvidia-container-cli: ldcache error: process /sbin/ldconfig failed",
        "the NVIDIA container toolkit could not give GPUs",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meaning"), RECORDED)
def test_a_known_fault_says_what_is_missing_and_keeps_the_words(text: str, meaning: str) -> None:
    told = gpus.explained(text)
    assert meaning in told
    assert told.endswith(f"({text})")


@pytest.mark.parametrize(("text", "meaning"), RECORDED)
def test_a_known_fault_is_seen_in_the_log_too(text: str, meaning: str) -> None:
    told = gpus.explained("the probe ended with exit code 1", f"a line\n{text}\nanother")
    assert meaning in told
    assert told.endswith("(the probe ended with exit code 1)")


@pytest.mark.parametrize("text", ["RuntimeError: shape mismatch", "ModuleNotFoundError: xidx", ""])
def test_any_other_fault_keeps_its_words(text: str) -> None:
    assert gpus.explained(text, "nothing of GPUs") == text


@pytest.mark.parametrize(
    ("asked", "requests"),
    [
        (["all"], [("", -1, [], [["gpu"]])]),
        (["0", "2"], [("", 0, ["0", "2"], [["gpu"]])]),
        (
            ["GPU-8f2c", "MIG-c6d4f1ef"],
            [("", 0, ["GPU-8f2c", "MIG-c6d4f1ef"], [["gpu"]])],
        ),
        (["nvidia.com/gpu=all"], [("cdi", 0, ["nvidia.com/gpu=all"], [])]),
        (
            ["1", "nvidia.com/gpu=0:1"],
            [("", 0, ["1"], [["gpu"]]), ("cdi", 0, ["nvidia.com/gpu=0:1"], [])],
        ),
    ],
)
def test_requests_to_the_engine(asked: list[str], requests: list[object]) -> None:
    found = gpus.requests(asked)
    assert [(one.driver, one.count, one.device_ids, one.capabilities) for one in found] == requests


@pytest.mark.parametrize(
    ("least", "found", "fine"),
    [
        ("525.60.13", "525.60.13", True),
        ("525.60.13", "525.60.9", False),
        ("525.60.13", "580.65.06", True),
        ("580.65.06", "525.147.05", False),
        ("580.65.06", "1000.1", True),
        (None, "1.0", True),
        ("580.65.06", None, True),
    ],
)
def test_the_least_driver(least: str | None, found: str | None, fine: bool) -> None:
    problem = gpus.too_old(least, found)
    assert (problem is None) == fine
    assert problem is None or (str(least) in problem and str(found) in problem)


def test_no_driver_is_no_version() -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert gpus.driver_version() is None
    else:
        assert gpus.driver_version() == pynvml.nvmlSystemGetDriverVersion()
