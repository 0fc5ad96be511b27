"""torch: how it was built, and which settings are effective in this process.

Nothing here imports dynamo, inductor or the optimisers: each costs seconds.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from reprokit.environment import libraries, onednn
from reprokit.environment.absence import Absences, Unavailable, reason_of
from reprokit.environment.privacy import sha256_text

Readings = dict[str, Callable[[], Any]]

_STRICT = 0x10000
# MKL_CBWR_* of mkl_service.h, without the prefix; MKL answers 1 when nobody asked for reproducibility.
_CBWR = {
    1: "BRANCH_OFF", 2: "AUTO", 3: "COMPATIBLE", 4: "SSE2", 5: "SSE3", 6: "SSSE3", 7: "SSE4_1", 8: "SSE4_2",
    9: "AVX", 10: "AVX2", 11: "AVX512_MIC", 12: "AVX512", 13: "AVX512_MIC_E1", 14: "AVX512_E1",
}  # fmt: skip
_MIXED = "the old and the new TF32 settings are mixed: fp32_precision holds"
_BUILD = {
    "blas": re.compile(r"\bBLAS_INFO=([^,\s]+)"),
    "lapack": re.compile(r"\bLAPACK_INFO=([^,\s]+)"),
    "mkl": re.compile(r"Math Kernel Library Version ([\d.]+)"),
    "onednn": re.compile(r"(?:MKL-DNN|oneDNN) v([\d.]+)"),
    "onednn_commit": re.compile(r"(?:MKL-DNN|oneDNN) v[\d.]+ \(Git Hash ([0-9a-f]+)\)"),
    "openmp": re.compile(r"OpenMP (\d{6})\b"),
    "compiler": re.compile(r"^\s*-\s*((?:GCC|[Cc]lang|MSVC) [\d.]+)", re.MULTILINE),
}
_CAPABILITY = re.compile(r".*CPU capability usage.*\n")  # a setting in effect, which is recorded as such
_PARALLEL = {
    "backend": re.compile(r"ATen parallel backend: (.+)"),
    "max_threads": re.compile(r"omp_get_max_threads\(\) : (\d+)"),
    "mkl_threads": re.compile(r"mkl_get_max_threads\(\) : (\d+)"),
}
_INDUCTOR = {
    "max_autotune": "max_autotune",
    "max_autotune_gemm": "max_autotune_gemm",
    "coordinate_descent_tuning": "coordinate_descent_tuning",
    "cudagraphs": "triton.cudagraphs",
    "deterministic": "deterministic",
    "emulate_precision_casts": "emulate_precision_casts",
}


def collect(absences: Absences) -> dict[str, Any] | None:
    """The section `torch`; null without torch."""
    try:
        import torch  # the probe side works without it
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        absences.unavailable("torch", "torch is not installed" if missing else reason_of(error))
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some old settings warn when they are read
        return _section(absences, torch)


def _section(absences: Absences, torch: Any) -> dict[str, Any]:
    def read(readings: Readings, prefix: str = "torch") -> dict[str, Any]:
        return {name: absences.read(f"{prefix}.{name}", reading) for name, reading in readings.items()}

    told = absences.read("torch.onednn_kernel", onednn.effective)
    isa = absences.read("torch.onednn_isa", lambda: onednn.effective().told_isa())
    return {
        **read(_identity(torch)),
        "build": _parsed(_BUILD, torch.__config__.show())
        | {"config_sha256": sha256_text(_CAPABILITY.sub("", torch.__config__.show()))},
        **read(_numerics(torch)),
        # The new settings are read before the old ones, which refuse to answer when both were used.
        "fp32_precision": read(_fp32_precision(torch), "torch.fp32_precision"),
        "float32_matmul_precision": absences.read(
            "torch.float32_matmul_precision", lambda: _old(torch.get_float32_matmul_precision)
        ),
        "cudnn": read(_cudnn(torch), "torch.cudnn"),
        "matmul": read(_matmul(torch), "torch.matmul"),
        "attention": read(_attention(torch), "torch.attention") | _chosen(absences, torch),
        "mkldnn": read(_mkldnn(torch), "torch.mkldnn"),
        "mkl_cbwr": absences.read("torch.mkl_cbwr", lambda: mkl_cbwr(torch)),
        "onednn_isa": isa,
        "onednn_kernel": told.kernel if told else None,
        "openmp": absences.read("torch.openmp.*", lambda: _openmp(torch)) or dict.fromkeys(_PARALLEL),
        "inductor": _inductor(absences),
    }


def _identity(torch: Any) -> Readings:
    return {
        "version": lambda: str(torch.__version__),
        "git_commit": lambda: torch.version.git_version,
        "cuda_build": lambda: torch.version.cuda,
        "hip_build": lambda: torch.version.hip,
    }


def _numerics(torch: Any) -> Readings:
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability,
        "num_threads": torch.get_num_threads,
        "num_interop_threads": torch.get_num_interop_threads,
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        "flush_denormal": lambda: flushes_denormals(torch),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "preferred_blas_library": lambda: _preferred(torch, "preferred_blas_library"),
        "preferred_linalg_library": lambda: _preferred(torch, "preferred_linalg_library"),
        "quantized_engine": lambda: torch.backends.quantized.engine,
    }


def _fp32_precision(torch: Any) -> Readings:
    backends = torch.backends
    return {
        "all": lambda: _new(backends),
        "cuda_matmul": lambda: _new(backends.cuda.matmul),
        "cudnn": lambda: _new(backends.cudnn),
        "cudnn_conv": lambda: _new(backends.cudnn.conv),
        "cudnn_rnn": lambda: _new(backends.cudnn.rnn),
        "mkldnn": lambda: _new(backends.mkldnn),
        "mkldnn_matmul": lambda: _new(backends.mkldnn.matmul),
        "mkldnn_conv": lambda: _new(backends.mkldnn.conv),
        "mkldnn_rnn": lambda: _new(backends.mkldnn.rnn),
    }


def _cudnn(torch: Any) -> Readings:
    cudnn = torch.backends.cudnn
    return {
        "enabled": lambda: cudnn.enabled,
        "benchmark": lambda: cudnn.benchmark,
        "deterministic": lambda: cudnn.deterministic,
        "allow_tf32": lambda: _old(lambda: cudnn.allow_tf32),
        "version": cudnn.version,
    }


def _matmul(torch: Any) -> Readings:
    matmul, c = torch.backends.cuda.matmul, torch._C
    return {
        "allow_tf32": lambda: _old(lambda: matmul.allow_tf32),
        "fp16_reduced_precision_reduction": lambda: _both(
            c._get_cublas_allow_fp16_reduced_precision_reduction()
        )[0],
        "fp16_split_k": lambda: _both(c._get_cublas_allow_fp16_reduced_precision_reduction())[1],
        "bf16_reduced_precision_reduction": lambda: _both(
            c._get_cublas_allow_bf16_reduced_precision_reduction()
        )[0],
        "bf16_split_k": lambda: _both(c._get_cublas_allow_bf16_reduced_precision_reduction())[1],
        "fp16_accumulation": lambda: matmul.allow_fp16_accumulation,
    }


def _attention(torch: Any) -> Readings:
    cuda = torch.backends.cuda
    return {
        "flash": cuda.flash_sdp_enabled,
        "memory_efficient": cuda.mem_efficient_sdp_enabled,
        "math": cuda.math_sdp_enabled,
        "cudnn": lambda: _called(cuda, "cudnn_sdp_enabled"),
        "math_reduced_precision": lambda: _called(cuda, "fp16_bf16_reduction_math_sdp_allowed"),
    }


def _chosen(absences: Absences, torch: Any) -> dict[str, str]:
    """The key `chosen`, which came later than the first documents and is left out where it cannot be told."""
    kernel = absences.read("torch.attention.chosen", lambda: chosen_attention(torch))
    return {} if kernel is None else {"chosen": kernel}


def chosen_attention(torch: Any) -> str:
    """The kernel that torch picks for the probe's attention, by a function of torch that is not public.

    It is asked on CUDA only where this process has initialised it: asking would do so.

    Raises:
        Unavailable: this torch cannot be asked.
    """
    if not hasattr(torch, "_fused_sdp_choice"):
        raise Unavailable("this torch has no _fused_sdp_choice")
    device = "cuda" if torch.cuda.is_initialized() else "cpu"
    heads = torch.zeros(2, 4, 140, 64, device=device, dtype=torch.float32)
    number = torch._fused_sdp_choice(heads, heads, heads, attn_mask=None, dropout_p=0.0, is_causal=True)
    names = {int(backend): name for name, backend in torch._C._SDPBackend.__members__.items()}
    if number not in names:
        raise Unavailable(f"torch answered with the unknown kernel {number}")
    return str(names[number]).lower()


def _mkldnn(torch: Any) -> Readings:
    mkldnn = torch.backends.mkldnn
    return {
        "available": mkldnn.is_available,
        "enabled": lambda: mkldnn.enabled,
        "deterministic": lambda: mkldnn.deterministic,
    }


def flushes_denormals(torch: Any) -> bool:
    """Whether half of the smallest normal fp32 number becomes zero, measured on this thread."""
    smallest = torch.full((1,), 2.0**-126, dtype=torch.float32, device="cpu")
    return bool(((smallest * 0.5) * 2.0**100).item() == 0.0)


def mkl_cbwr(torch: Any) -> str:
    """MKL's effective reproducibility mode, in the words of its documentation.

    Raises:
        Unavailable: this torch has no MKL, or it cannot be asked.
    """
    if not torch.backends.mkl.is_available():
        raise Unavailable("this torch has no MKL")
    for prefix in ("libtorch_cpu.so", "libmkl_rt.so", "libmkl_core.so"):
        path = libraries.loaded(prefix)
        function = getattr(ctypes.CDLL(path), "mkl_serv_cbwr_get", None) if path else None
        if function is not None:
            return _cbwr_name(function(-1))
    raise Unavailable("the loaded MKL does not export mkl_serv_cbwr_get")


def _cbwr_name(mode: int) -> str:
    branch = _CBWR.get(mode & ~_STRICT)
    if branch is None:
        raise Unavailable(f"MKL answered with the unknown mode {mode}")
    return branch + (",STRICT" if mode & _STRICT else "")


def _openmp(torch: Any) -> dict[str, Any]:
    told = _parsed(_PARALLEL, torch.__config__.parallel_info())
    return {name: int(value) if value and name != "backend" else value for name, value in told.items()}


def _inductor(absences: Absences) -> dict[str, Any] | None:
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        absences.not_asked("torch.inductor", "torch._inductor is not imported in this process")
        return None

    def setting(path: str) -> bool | None:
        value: Any = operator.attrgetter(path)(config)
        return None if value is None else bool(value)

    return {
        name: absences.read(f"torch.inductor.{name}", functools.partial(setting, path))
        for name, path in _INDUCTOR.items()
    }


def _preferred(torch: Any, function: str) -> str:
    """The name of a preferred library; torch answers with an enumeration."""
    return str(_called(torch.backends.cuda, function).name).lower()


def _called(module: Any, function: str) -> Any:
    """What `module`'s `function` returns; older versions of torch lack it."""
    if not hasattr(module, function):
        raise Unavailable(f"this torch has no {function}")
    return getattr(module, function)()


def _new(backend: Any) -> str:
    """A new-style precision setting."""
    try:
        return str(backend.fp32_precision)
    except AttributeError:
        raise Unavailable("this torch has no fp32_precision settings") from None


def _old(reading: Callable[[], Any]) -> Any:
    """An old-style precision setting."""
    try:
        return reading()
    except RuntimeError as error:
        raise Unavailable(_MIXED if "mix" in str(error) else reason_of(error)) from None


def _both(value: Any) -> tuple[bool, bool | None]:
    """Reduced precision and split-K; torch before 2.9 tells only the first."""
    return (bool(value[0]), bool(value[1])) if isinstance(value, tuple) else (bool(value), None)


def _parsed(patterns: dict[str, re.Pattern[str]], text: str) -> dict[str, Any]:
    return {
        name: match[1].strip() if (match := pattern.search(text)) else None
        for name, pattern in patterns.items()
    }
