"""GPUs of a cell: how an engine is asked for them, and what its errors mean.

The texts are those of Docker, the NVIDIA container toolkit, NVML, CUDA and the NVIDIA kernel driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker.types import DeviceRequest

ALL = "all"
_CDI = re.compile(r"[A-Za-z0-9.\-]+/[A-Za-z0-9._\-]+=\S+")  # vendor/class=device
_FAULTS = (
    (
        r'could not select device driver "" with capabilities',
        "the container engine knows no NVIDIA runtime: install the NVIDIA container toolkit on this machine, run "
        "`nvidia-ctk runtime configure --runtime=docker` and restart Docker",
    ),
    (
        r'could not select device driver "cdi"|CDI is not enabled',
        "the container engine has no CDI: use Docker 25 or newer with the feature `cdi`, or select GPUs with `all`, "
        "an index or a UUID",
    ),
    (
        r"unresolvable CDI devices|CDI device injection failed",
        "no CDI specification names this device: run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
    ),
    (
        r"unsatisfied condition: cuda\s*>=|please update your driver|driver version is insufficient for CUDA",
        "the NVIDIA driver of this machine is older than the image needs: update it, or choose an image of an older "
        "CUDA",
    ),
    (
        r"unknown device|device(?:s)? not found|No devices were found|invalid device ordinal",
        "this machine has no such GPU: `nvidia-smi -L` shows the indices and UUIDs, those of MIG instances too",
    ),
    (
        r"Failed to initialize NVML|Driver/library version mismatch|nvml error",
        "the NVIDIA driver does not answer: it was updated without a reboot, or the GPU was lost",
    ),
    (
        r"no CUDA-capable device is detected|CUDA driver initialization failed|torch finds no usable GPU",
        "the probe finds no GPU: none is visible in this environment",
    ),
    (
        r"\bXid\b|uncorrectable ECC error|GPU has fallen off the bus|GPU is lost|device-side .*ECC",
        "the GPU failed in the middle of the run: look at the kernel's log and at `nvidia-smi`",
    ),
    (
        r"nvidia-container-cli:|nvidia-container-runtime",
        "the NVIDIA container toolkit could not give GPUs to the container",
    ),
)


def requests(gpus: Sequence[str]) -> list[DeviceRequest]:
    """What the engine is asked for: `all`, indices, UUIDs (`GPU-…`, `MIG-…`) or CDI names."""
    from docker.types import DeviceRequest

    devices = [gpu for gpu in gpus if gpu != ALL]
    cdi = [gpu for gpu in devices if _CDI.fullmatch(gpu)]
    ids = [gpu for gpu in devices if gpu not in cdi]
    capabilities = [["gpu"]]
    found = []
    if ids:
        found.append(DeviceRequest(device_ids=ids, capabilities=capabilities))
    elif not cdi:
        found.append(DeviceRequest(count=-1, capabilities=capabilities))
    if cdi:
        found.append(DeviceRequest(driver="cdi", device_ids=cdi))
    return found


def explained(message: str, log: str = "") -> str:
    """`message` with what is missing and how to mend it, where it or the log tells a known fault of GPUs."""
    for pattern, meaning in _FAULTS:
        if re.search(pattern, f"{message}\n{log}", re.IGNORECASE):
            return f"{meaning} ({message})"
    return message


def driver_version() -> str | None:
    """Version of the NVIDIA driver of this machine, as NVML tells it; None where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def too_old(least: str | None, found: str | None) -> str | None:
    """What is wrong with a driver of version `found` where `least` is needed; None: nothing, or nobody knows."""
    if least is None or found is None or _parts(found) >= _parts(least):
        return None
    return (
        f"the NVIDIA driver of this machine is {found}, the image needs {least} or newer: update it, or choose an "
        "image of an older CUDA"
    )


def _parts(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
