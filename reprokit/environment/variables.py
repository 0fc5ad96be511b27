"""Environment variables that change numbers: by allow-list, with private values replaced.

A variable that is not listed is shown at full detail alone. Together they count in one hash (`other_variables`),
so that a change among them is still seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from reprokit.environment import privacy

EXACT = frozenset(
    """
    ATEN_CPU_CAPABILITY NVIDIA_TF32_OVERRIDE NVIDIA_DISABLE_REQUIRE NVIDIA_VISIBLE_DEVICES
    NVIDIA_DRIVER_CAPABILITIES NVIDIA_REQUIRE_CUDA
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_MODULE_LOADING CUDA_LAUNCH_BLOCKING
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_DISABLE_PTX_JIT CUDA_FORCE_PTX_JIT CUDA_FORCE_JIT CUDA_DISABLE_JIT
    CUDA_CACHE_DISABLE CUDA_AUTO_BOOST CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_DEVICE_WAITS_ON_EXCEPTION
    NCCL_ALGO NCCL_PROTO NCCL_NVLS_ENABLE NCCL_COLLNET_ENABLE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS
    NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_NTHREADS NCCL_BUFFSIZE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE
    NCCL_NET_GDR_LEVEL NCCL_IB_DISABLE NCCL_CROSS_NIC NCCL_LL_THRESHOLD NCCL_SINGLE_RING_THRESHOLD
    NCCL_THREAD_THRESHOLDS NCCL_LAUNCH_MODE NCCL_CUMEM_ENABLE NCCL_GRAPH_MIXING_SUPPORT
    NCCL_NCHANNELS_PER_NET_PEER NCCL_MNNVL_ENABLE NCCL_PXN_DISABLE NCCL_TUNER_PLUGIN NCCL_NET_PLUGIN
    PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK
    PYTORCH_TUNABLEOP_ENABLED PYTORCH_TUNABLEOP_TUNING PYTORCH_TUNABLEOP_NUMERICAL_CHECK PYTORCH_JIT
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT
    TORCH_CUDNN_DETERMINISTIC TORCH_CUDNN_SDPA_ENABLED TORCH_CUDNN_SDPA_AVOID_RECOMPILE TORCH_COMPILE_DISABLE
    TORCH_BLAS_PREFER_CUBLASLT TORCH_BLAS_PREFER_HIPBLASLT TORCH_BLAS_PREFER_CK TORCH_LINALG_PREFER_CUSOLVER
    TORCH_LINALG_PREFER_MAGMA TORCH_LINALG_PREFER_HIPSOLVER TORCH_DISABLE_ADDR2LINE TORCH_CUDA_ARCH_LIST
    TORCH_MKLDNN_MATMUL_MIN_DIM TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_NAN_CHECK TORCH_NCCL_HIGH_PRIORITY
    TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_SYMMMEM
    TORCHDYNAMO_DISABLE TF32_OVERRIDE XLA_FLAGS XLA_PYTHON_CLIENT_PREALLOCATE JAX_ENABLE_X64
    JAX_DEFAULT_MATMUL_PRECISION JAX_DEFAULT_DTYPE_BITS JAX_PLATFORMS JAX_THREEFRY_PARTITIONABLE
    JAX_DEFAULT_PRNG_IMPL JAX_NUMPY_DTYPE_PROMOTION TF_ENABLE_ONEDNN_OPTS TF_XLA_FLAGS TF_USE_CUDNN_AUTOTUNE
    TF_CUDNN_USE_AUTOTUNE TF_CUDNN_USE_FRONTEND TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS
    TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32 TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32 TF_FORCE_GPU_ALLOW_GROWTH
    FLASH_ATTENTION_DETERMINISTIC XFORMERS_DISABLED XFORMERS_FORCE_DISABLE_TRITON VLLM_BATCH_INVARIANT
    VLLM_ATTENTION_BACKEND VLLM_ENABLE_V1_MULTIPROCESSING VLLM_USE_V1 VLLM_USE_TRITON_FLASH_ATTN
    VLLM_USE_FLASHINFER_SAMPLER VLLM_FLASH_ATTN_VERSION VLLM_ALLREDUCE_USE_SYMM_MEM VLLM_USE_DEEP_GEMM
    VLLM_FLOAT32_MATMUL_PRECISION SGLANG_ENABLE_DETERMINISTIC_INFERENCE TOKENIZERS_PARALLELISM
    PYTHONHASHSEED PYTHONOPTIMIZE LD_PRELOAD GLIBC_TUNABLES VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS
    NUMEXPR_MAX_THREADS HSA_OVERRIDE_GFX_VERSION HIP_VISIBLE_DEVICES ROCBLAS_INTERNAL_FP16_ALT_IMPL
    MIOPEN_FIND_MODE MIOPEN_DEBUG_CONVOLUTION_ATTRIB_FP16_ALT_IMPL PYTORCH_HIP_ALLOC_CONF
    ACCELERATE_MIXED_PRECISION
    """.split()  # noqa: SIM905
)
PREFIXES = (
    "ONEDNN_", "DNNL_", "MKL_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_", "GOTO_", "BLIS_", "NVPL_", "ARMPL_",
    "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUSOLVER_", "CUSPARSE_", "NVTE_", "NPY_", "TORCHINDUCTOR_", "TRITON_",
)  # fmt: skip
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")  # what no library reads is no setting
_DETERMINISM = re.compile(r"^TF_\w*DETERMIN\w*$")
# Where something is stored, how much is printed: these change no number and would tell users apart.
_IRRELEVANT_SUFFIXES = (
    "_DIR", "_HOME", "_LOG", "_LOGDEST", "_LOGINFO", "_LOGFILE", "_LOG_FILE", "_DUMP",
    "_HOST", "_HOSTNAME", "_URL", "_URI", "_USER", "_EMAIL", "_ADDR", "_ADDRESS", "_PORT",
)  # fmt: skip
# What shells, terminals and CI systems count and name anew in every run: it would always look changed.
_BOOKKEEPING = re.compile(
    r"_|SHLVL|PWD|OLDPWD|COLUMNS|LINES|TERM\w*|WINDOWID|DISPLAY|XDG_SESSION_\w+|DBUS_\w+|SSH_\w+|INVOCATION_ID"
    r"|JOURNAL_STREAM|SYSTEMD_EXEC_PID|TMPDIR|TEMP|TMP|PYTEST_\w+|GITHUB_\w+|RUNNER_\w+|ACTIONS_\w+|CI|CI_\w+"
    r"|BUILD_\w+|BUILDKITE_\w+|SLURM_JOB\w*|SLURM_STEP\w*|HOSTNAME"
)
_DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_LONGEST_VALUE = 4096
_LONGEST_NAME = 200


def collect(detail: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The listed variables that are set, by name; private values are replaced unless `detail` is full."""
    environment = os.environ if environment is None else environment
    return {name: shown(name, value, detail) for name, value in sorted(environment.items()) if listed(name)}


def other_variables(detail: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """How many variables are set but not listed, and one `sha256:…` over their sorted `NAME=value` lines.

    The bookkeeping of shells and CI systems is left out. Full detail also gives their values, never those whose
    name says that they are secret.
    """
    environment = os.environ if environment is None else environment
    others = {
        name: value
        for name, value in sorted(environment.items())
        if not listed(name) and not _BOOKKEEPING.fullmatch(name)
    }
    values = {
        name: shown(name, value, detail)
        for name, value in others.items()
        if name.isprintable() and len(name) <= _LONGEST_NAME and not privacy.names_secret(name)
    }
    return {
        "count": len(others),
        "sha256": privacy.sha256_lines([f"{name}={value}" for name, value in others.items()]),
        "values": values if detail == "full" else None,
    }


def listed(name: str) -> bool:
    """Whether a variable of this name is shown when set."""
    if name in EXACT:
        return True
    if not _NAME.fullmatch(name) or privacy.names_secret(name) or name.endswith(_IRRELEVANT_SUFFIXES):
        return False
    return name.startswith(PREFIXES) or _DETERMINISM.match(name) is not None


def shown(name: str, value: str, detail: str) -> str:
    """`value` as it may leave the machine.

    What looks like a secret becomes its hash at any detail. Below full detail paths become a hash too, except
    in LD_PRELOAD, which keeps the names of its files, and devices lose their UUIDs.
    """
    if len(value) > _LONGEST_VALUE or not value.isprintable():
        return privacy.sha256_text(value)
    if name in _DEVICE_LISTS and detail != "full":
        value = ",".join(_device_kind(device) for device in value.split(","))
    elif name == "LD_PRELOAD" and detail != "full":
        value = ":".join(PurePosixPath(entry).name for entry in re.split(r"[ :]+", value) if entry)
    located = privacy.holds_location(value) or privacy.UUID.search(value) is not None
    hidden = privacy.looks_secret(privacy.UUID.sub("", value)) or (located and detail != "full")
    return privacy.sha256_text(value) if hidden else value


def _device_kind(device: str) -> str:
    """A device of a list without its identity: an index stays, `GPU-8f3c…` becomes `GPU`."""
    device = device.strip()
    kind, dash, _ = device.partition("-")
    return kind if dash and kind in ("GPU", "MIG") else device
