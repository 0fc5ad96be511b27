"""The NVIDIA driver and the CUDA libraries that this process has really loaded."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from reprokit.environment import libraries
from reprokit.environment.absence import Absences, Unavailable
from reprokit.environment.nvml import Nvml

_FIELDS = (
    "version", "cuda_api", "libcuda_version", "libcuda_path", "cuda_runtime", "cudnn", "nccl", "nvrtc",
    "ptxas", "triton", "module_loading",
)  # fmt: skip
_LIBCUDA_VERSION = re.compile(r"libcuda\.so\.(\d+\.[\d.]+)$")
_PTXAS_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
_PTXAS_SECONDS = 10
_LOADING = {1: "eager", 2: "lazy"}


def collect(absences: Absences, nvml: Nvml, installed: dict[str, str], detail: str) -> dict[str, Any]:
    """The section `driver`; where there is neither driver nor CUDA, one entry `driver.*` stands for it."""
    attempts = Absences()
    readings = {
        "version": lambda: str(nvml.ask("nvmlSystemGetDriverVersion")),
        "cuda_api": lambda: _cuda_version(int(nvml.ask("nvmlSystemGetCudaDriverVersion_v2"))),
        "libcuda_version": _libcuda_version,
        "libcuda_path": lambda: _libcuda_path(detail),
        "cuda_runtime": _cuda_runtime,
        "cudnn": _cudnn,
        "nccl": _nccl,
        "nvrtc": _nvrtc,
        "ptxas": _ptxas,
        "triton": lambda: _triton(installed),
        "module_loading": _module_loading,
    }
    section = {field: attempts.read(f"driver.{field}", readings[field]) for field in _FIELDS}
    if nvml.failure is not None and not any(section.values()):
        absences.unavailable("driver.*", nvml.failure)
    else:
        for entry in attempts.entries():
            absences.unavailable(entry["field"], entry["reason"])
    return section


def _libcuda() -> str:
    path = libraries.loaded("libcuda.so")
    if path is None:
        raise Unavailable("libcuda is not loaded")
    return path


def _libcuda_version() -> str:
    match = _LIBCUDA_VERSION.search(os.path.realpath(_libcuda()))
    if match is None:
        raise Unavailable("the name of the loaded libcuda has no version")
    return match[1]


def _libcuda_path(detail: str) -> str:
    path = Path(_libcuda())
    if detail == "full":
        return str(path)
    return f"compat/{path.name}" if "compat" in path.parts else path.name


def _cuda_runtime() -> str:
    path = libraries.loaded("libcudart.so")
    if path is None:
        raise Unavailable("libcudart is not loaded")
    version = ctypes.c_int()
    _succeed("cudaRuntimeGetVersion", ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(version)))
    return _cuda_version(version.value)


def _cudnn() -> str:
    number = _torch().backends.cudnn.version()
    if number is None:
        raise Unavailable("this torch has no cuDNN")
    # From version 9 on the major number has five digits, four before.
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _nccl() -> str:
    torch = _torch()
    if not hasattr(torch._C, "_nccl_version"):
        raise Unavailable("this torch has no NCCL")
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _nvrtc() -> str:
    path = libraries.loaded("libnvrtc.so") or libraries.loaded("libnvrtc-")
    if path is None:
        raise Unavailable("libnvrtc is not loaded")
    major, minor = ctypes.c_int(), ctypes.c_int()
    _succeed("nvrtcVersion", ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def _triton(installed: dict[str, str]) -> str:
    for name in ("triton", "pytorch-triton", "triton-nightly"):
        if name in installed:
            return installed[name]
    raise Unavailable("Triton is not installed")


def _ptxas() -> str:
    """Asks the very file that Triton would run; found without importing Triton."""
    requested = os.environ.get("TRITON_PTXAS_PATH")
    if requested:
        path = Path(requested)
    else:
        spec = importlib.util.find_spec("triton")
        if spec is None or spec.origin is None:
            raise Unavailable("Triton is not installed")
        path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if not path.is_file():
        raise Unavailable("Triton brings no ptxas")
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_PTXAS_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"ptxas took longer than {_PTXAS_SECONDS} s") from None
    match = _PTXAS_VERSION.search(done.stdout)
    if match is None:
        raise Unavailable("ptxas did not tell its version")
    return match[1]


def _module_loading() -> str:
    if not _torch().cuda.is_initialized():
        raise Unavailable("CUDA is not initialised")
    mode = ctypes.c_int()
    _succeed("cuModuleGetLoadingMode", ctypes.CDLL(_libcuda()).cuModuleGetLoadingMode(ctypes.byref(mode)))
    if mode.value not in _LOADING:
        raise Unavailable(f"CUDA answered with the unknown mode {mode.value}")
    return _LOADING[mode.value]


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise Unavailable("torch is not loaded")
    return torch


def _succeed(function: str, code: int) -> None:
    if code:
        raise Unavailable(f"{function} failed with error {code}")


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
