"""The interpreter, and the distributions it finds.

Names and versions come from the names of the metadata folders: opening each one, as `importlib.metadata`
does, costs many times as much and says the same.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprokit.environment.absence import Absences
from reprokit.environment.privacy import sha256_lines

NUMERIC = frozenset(
    """
    torch torchvision torchaudio torchao torchtune torchtitan numpy scipy numba numexpr triton
    pytorch-triton transformers tokenizers sentencepiece tiktoken datasets accelerate safetensors peft
    diffusers deepspeed megatron-core apex ml-dtypes scikit-learn pandas pyarrow jax jaxlib flax optax
    tensorflow tensorflow-cpu keras xformers flash-attn flash-attn-3 flashinfer-python causal-conv1d
    flash-linear-attention mamba-ssm transformer-engine transformer-engine-torch vllm sglang sgl-kernel
    bitsandbytes auto-gptq autoawq gptqmodel compressed-tensors llmcompressor quanto optimum
    optimum-quanto microxcaling onnx onnxruntime onnxruntime-gpu onnxruntime-training openvino tensorrt
    mkl mkl-service mkl-fft mkl-random intel-openmp intel-extension-for-pytorch onednn scipy-openblas32
    scipy-openblas64 einops opt-einsum lightning pytorch-lightning torchmetrics cupy cupy-cuda12x
    cupy-cuda13x nccl liger-kernel unsloth trl pillow triton-nightly opencv-python opencv-python-headless
    nvidia-ml-py reprokit
    """.split()  # noqa: SIM905
)
_NUMERIC_PREFIXES = ("nvidia-", "jax-cuda", "jax-rocm", "tensorrt-", "onnxruntime-", "transformer-engine-")
_INSTALLED = re.compile(r"^(?P<name>[A-Za-z0-9][\w.\-]*?)-(?P<version>\d[^-]*|v\d[^-]*)(?:-py\d[\w.\-]*)?$")
_HEADER = re.compile(r"^(Name|Version):[ \t]*(\S+)", re.MULTILINE)
_HEADER_BYTES = 4096


def collect_python(absences: Absences, installed: dict[str, str]) -> dict[str, Any]:
    """The section `python`."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
        "hash_randomization": bool(sys.flags.hash_randomization),
        "optimize": sys.flags.optimize,
        "packages_count": len(installed),
        "packages_sha256": sha256_lines([f"{name}=={version}" for name, version in installed.items()]),
    }


def collect(installed: dict[str, str], detail: str) -> dict[str, str]:
    """The section `packages`: those that change numbers, or all of them with `detail` full."""
    return {
        name: version
        for name, version in sorted(installed.items())
        if detail == "full" or name in NUMERIC or name.startswith(_NUMERIC_PREFIXES)
    }


def find(folders: list[str] | None = None) -> dict[str, str]:
    """Version per distribution that an import could find, by normalised name; the first folder wins."""
    installed: dict[str, str] = {}
    for folder in sys.path if folders is None else folders:
        for name, version in _in_folder(Path(folder or ".")):
            installed.setdefault(name, version)
    return installed


def normalised(name: str) -> str:
    """A distribution's name in the one spelling that PEP 503 defines."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    """Distributions of one folder, sorted by file name so that two versions of one always resolve alike."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only, and fast
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # sys.path may name folders that are not there, or a zip file
    for entry in sorted(name for name in names if name.endswith((".dist-info", ".egg-info", ".egg"))):
        stem = entry.rpartition(".")[0]
        if match := _INSTALLED.match(stem):
            yield normalised(match["name"]), match["version"]
        elif found := _from_metadata(folder / entry):
            yield found


def _from_metadata(path: Path) -> tuple[str, str] | None:
    """Name and version of a metadata folder whose own name has no version, such as that of a source tree."""
    for file in (path / "METADATA", path / "PKG-INFO", path / "EGG-INFO" / "PKG-INFO", path):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as stream:
                headers = dict(_HEADER.findall(stream.read(_HEADER_BYTES)))
            if "Name" in headers and "Version" in headers:
                return normalised(headers["Name"]), headers["Version"]
    return None
