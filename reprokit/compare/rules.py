"""What is known of each field of the environment: which operator classes it can move, and whose it is.

The evidence is public reports, vendor documentation and trials of one variable at a time (torch 2.13 on an x86-64
CPU with AVX-512). The order of the table is the order of suspicion: what a person sets comes before what follows
from it. The first rule whose pattern matches a field applies; a field without a rule is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

GEMM = ("gemm", "attention", "conv", "metric")
VECTOR = ("softmax", "attention", "norm", "elementwise", "reduction", "metric")
THREADS = ("reduction", "gemm", "attention", "scatter", "metric")
NUMPY = ("gemm", "reduction", "elementwise", "rng", "sort")
ANY = (
    "rng", "gemm", "conv", "reduction", "softmax", "norm", "attention", "scatter", "sort", "elementwise",
    "quantize", "collective", "metric",
)  # fmt: skip
Library = Literal["numpy", "torch"]


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    `operators` are the classes that the field is known to move; empty: it can change numbers, nobody knows which,
    or, with `harmless`, it is known to change none. `library` limits it to stages that run in NumPy or in torch.
    `external`: it belongs to the machine. `causes` are the fields that an effective value follows from: it is
    external where all of those that changed are. With `compiles` it also moves, whatever its class, what is compiled at
    run time, and what ran another kernel than before.
    """

    pattern: str
    operators: tuple[str, ...]
    evidence: str
    external: bool = False
    harmless: bool = False
    library: Library | None = None
    causes: tuple[str, ...] = ()
    device: Literal["cuda"] | None = None
    compiles: bool = False


_CPU = ("cpu.model", "cpu.isa", "cpu.flags_sha256")
_CORES = ("cpu.available_cores", "cpu.logical_cores", "system.cpu_limit")
_TORCH = ("packages.torch", "torch.version", "torch.git_commit")
_NUMPY = ("packages.numpy", "numpy.version", "variables.NPY_*", *_CPU)

RULES: tuple[Rule, ...] = (
    Rule(
        "seeds.base", ("rng", "metric"), "the seed is a parameter of the experiment and moves what is random"
    ),
    Rule("seeds.metrics", ("metric",), "the trained task draws its weights and order from these seeds"),
    Rule("variables.*_VERBOSE", (), "it decides how much a library tells, and no number", harmless=True),
    # What a person sets, each directly before what follows from it.
    Rule(
        "variables.ATEN_CPU_CAPABILITY",
        VECTOR,
        "it picks the vector width of torch's own CPU kernels",
        library="torch",
    ),
    Rule(
        "torch.cpu_capability",
        VECTOR,
        "torch's own CPU kernels sum in the order of their vector width",
        library="torch",
        causes=("variables.ATEN_CPU_CAPABILITY", *_CPU, *_TORCH),
    ),
    Rule("variables.MKL_CBWR", GEMM, "it picks the code path of MKL's matrix products", library="torch"),
    Rule(
        "torch.mkl_cbwr",
        GEMM,
        "MKL's matrix products sum in the order of its code path",
        library="torch",
        causes=("variables.MKL_*", *_CPU, *_TORCH),
    ),
    Rule(
        "variables.ONEDNN_*",
        ("elementwise", "conv", "gemm", "attention", "metric"),
        "oneDNN computes GELU, convolutions and low-precision products by instruction set",
        library="torch",
    ),
    Rule(
        "variables.DNNL_*",
        ("elementwise", "conv", "gemm", "attention", "metric"),
        "the former name of oneDNN's settings",
        library="torch",
    ),
    Rule(
        "torch.onednn_*",
        ("elementwise", "conv", "gemm", "attention", "metric"),
        "oneDNN computes GELU, convolutions and low-precision products by instruction set",
        library="torch",
        causes=("variables.ONEDNN_*", "variables.DNNL_*", *_CPU, *_TORCH),
    ),
    Rule("variables.OMP_*", THREADS, "the number of threads splits reductions and matrix products"),
    Rule("variables.KMP_*", THREADS, "OpenMP's runtime decides how work is split"),
    Rule("variables.GOMP_*", THREADS, "OpenMP's runtime decides how work is split"),
    Rule(
        "variables.MKL_*",
        (*GEMM, "reduction"),
        "MKL's settings choose its kernels and threads",
        library="torch",
    ),
    Rule("variables.OPENBLAS_*", ("gemm",), "OpenBLAS picks its kernels by it", library="numpy"),
    Rule("variables.GOTO_*", ("gemm",), "OpenBLAS picks its threads by it", library="numpy"),
    Rule("variables.NPY_*", NUMPY, "NumPy picks its vector kernels by it", library="numpy"),
    Rule(
        "torch.num_threads",
        THREADS,
        "the number of threads splits reductions and matrix products",
        causes=("variables.OMP_*", "variables.MKL_*", *_CORES),
    ),
    Rule(
        "torch.openmp.*",
        THREADS,
        "the number of threads splits reductions and matrix products",
        causes=("variables.OMP_*", "variables.MKL_*", *_CORES, *_TORCH),
    ),
    Rule("variables.CUBLAS*", GEMM, "cuBLAS chooses its algorithms by the workspace it gets", device="cuda"),
    Rule("variables.NVIDIA_TF32_OVERRIDE", GEMM, "TF32 keeps 10 bits of the mantissa", device="cuda"),
    Rule("variables.TORCH_ALLOW_TF32*", GEMM, "TF32 keeps 10 bits of the mantissa", device="cuda"),
    Rule("variables.CUDNN*", ("conv", "attention", "norm"), "cuDNN chooses its kernels by it", device="cuda"),
    Rule(
        "variables.TORCH_CUDNN*",
        ("conv", "attention", "norm"),
        "cuDNN chooses its kernels by it",
        device="cuda",
    ),
    Rule(
        "variables.NCCL_*",
        ("collective",),
        "the order of an all-reduce follows algorithm, protocol and channels",
        device="cuda",
    ),
    Rule("variables.FLASH_ATTENTION*", ("attention",), "it chooses the attention kernel"),
    Rule("variables.PYTHONHASHSEED", ("rng", "data"), "the order of sets and hashes follows it"),
    Rule("variables.TORCHINDUCTOR_*", ANY, "compiled kernels are chosen and fused by it"),
    Rule("variables.*", (), "a variable of the list of those that change numbers"),
    Rule('variables?"*', (), "a variable of the list of those that change numbers"),
    # Packages and what they bring.
    Rule(
        "packages.numpy", NUMPY, "another NumPy brings other vector kernels and another BLAS", library="numpy"
    ),
    Rule(
        "numpy.version",
        NUMPY,
        "another NumPy brings other vector kernels",
        library="numpy",
        causes=("packages.numpy",),
    ),
    Rule(
        "numpy.blas.*",
        ("gemm",),
        "NumPy's matrix products are this BLAS's",
        library="numpy",
        causes=(*_NUMPY, "variables.OPENBLAS_*", "variables.OMP_*", "variables.GOTO_*", *_CORES),
    ),
    Rule("numpy.*", NUMPY, "NumPy picks its kernels by it", library="numpy", causes=_NUMPY),
    Rule(
        'libraries?"*openblas*',
        ("gemm",),
        "OpenBLAS runs NumPy's matrix products",
        library="numpy",
        causes=("packages.numpy",),
    ),
    Rule('libraries?"numpy/*', NUMPY, "NumPy's own kernels", library="numpy", causes=("packages.numpy",)),
    Rule("packages.torch", ANY, "another torch brings other kernels and other libraries"),
    Rule(
        "torch.version",
        ANY,
        "another torch brings other kernels and other libraries",
        causes=("packages.torch",),
    ),
    Rule("torch.git_commit", ANY, "another torch brings other kernels", causes=("packages.torch",)),
    Rule(
        "torch.cuda_build",
        ANY,
        "torch built for another CUDA brings other kernels",
        causes=("packages.torch",),
        device="cuda",
    ),
    Rule("torch.hip_build", ANY, "torch built for ROCm brings other kernels", causes=("packages.torch",)),
    Rule(
        "torch.build.config_sha256",
        (),
        "a description of the build, the effective vector level included",
        causes=(*_TORCH, "torch.cpu_capability"),
    ),
    Rule(
        "torch.build.*", ANY, "torch's build decides its kernels", causes=("packages.torch", "torch.version")
    ),
    Rule("packages.triton", (), "Triton compiles kernels at run time", device="cuda", compiles=True),
    Rule("packages.flash-attn*", ("attention",), "flash-attention brings attention kernels"),
    Rule("packages.transformer-engine*", ("gemm", "attention", "norm", "quantize"), "it brings FP8 kernels"),
    Rule("packages.nvidia-cublas*", GEMM, "cuBLAS runs the matrix products", device="cuda"),
    Rule("packages.nvidia-cudnn*", ("conv", "attention", "norm"), "cuDNN runs convolutions", device="cuda"),
    Rule("packages.nvidia-nccl*", ("collective",), "NCCL orders the all-reduce", device="cuda"),
    Rule("packages.nvidia-ml-py", (), "it only reads the GPU's state", harmless=True),
    Rule("packages.reprokit", (), "the measuring code itself"),
    Rule("packages.*", (), "a package of the list of those that change numbers"),
    Rule("packages?*", (), "a package"),
    # The machine.
    Rule("gpus?*.name", ANY, "another GPU chooses other kernels", external=True, device="cuda"),
    Rule(
        "gpus?*.compute_capability", ANY, "kernels are chosen by architecture", external=True, device="cuda"
    ),
    Rule(
        "gpus?*.sm_count",
        ("rng", "gemm", "attention", "reduction"),
        "it sets the grid of the random generator and cuBLASLt's choice",
        external=True,
        device="cuda",
    ),
    Rule("gpus?*.max_threads_per_sm", ("rng",), "it sets the generator's grid", external=True, device="cuda"),
    Rule("gpus?*.mig.*", ("rng", "gemm", "attention"), "a slice has fewer SMs", external=True, device="cuda"),
    Rule("gpus?*.nv*", ("collective",), "the all-reduce follows the topology", external=True, device="cuda"),
    Rule("gpus?*.uuid", (), "an identity", external=True, harmless=True),
    Rule("gpus?*.pci_bus_id", (), "an address", external=True, harmless=True),
    Rule("gpus?*.index", (), "a number of order", external=True, harmless=True),
    Rule("gpus?*.power_limit_watts", (), "it changes speed, not numbers", external=True, harmless=True),
    Rule("gpus?*.persistence_mode", (), "it changes start-up, not numbers", external=True, harmless=True),
    Rule("gpus?*.vbios", (), "firmware of the card", external=True, device="cuda"),
    Rule("gpus*", (), "the GPUs this process sees", external=True, device="cuda"),
    Rule(
        "driver.version",
        ("collective",),
        "a driver compiles what is built at run time and carries collectives, and runs shipped kernels as they are",
        external=True,
        device="cuda",
        compiles=True,
    ),
    Rule(
        "driver.cuda_api",
        ("collective",),
        "the driver's CUDA version",
        external=True,
        device="cuda",
        causes=("driver.version",),
        compiles=True,
    ),
    Rule(
        "driver.libcuda_version",
        ("collective",),
        "the driver library compiles what is built at run time",
        external=True,
        device="cuda",
        causes=("driver.version",),
        compiles=True,
    ),
    Rule("driver.nvrtc", (), "NVRTC compiles kernels at run time", device="cuda", compiles=True),
    Rule("driver.ptxas", (), "ptxas assembles what Triton compiles", device="cuda", compiles=True),
    Rule("driver.triton", (), "Triton compiles kernels at run time", device="cuda", compiles=True),
    Rule(
        "driver.libcuda_path",
        (),
        "a forward-compatibility copy of the driver can stand in for it",
        causes=("driver.version",),
        device="cuda",
    ),
    Rule(
        "driver.cudnn", ("conv", "attention", "norm"), "cuDNN runs convolutions and attention", device="cuda"
    ),
    Rule("driver.nccl", ("collective",), "NCCL orders the all-reduce", device="cuda"),
    Rule("driver.module_loading", (), "it changes start-up, not numbers", harmless=True),
    Rule("driver.*", ANY, "the CUDA libraries bring and compile the kernels", device="cuda"),
    Rule("cpu.model", (*VECTOR, *GEMM), "kernels are chosen by processor", external=True),
    Rule("cpu.isa", (*VECTOR, *GEMM), "kernels are chosen by instruction set", external=True),
    Rule("cpu.flags_sha256", (), "kernels are chosen by the processor's features", external=True),
    Rule("cpu.vendor", (*GEMM,), "MKL chooses its code path by vendor", external=True),
    # these three belong to the machine, but `limits` and `exec` of a cell set them too: a change can be the cause
    Rule("cpu.available_cores", THREADS, "the default number of threads follows it"),
    Rule("system.cpu_limit", THREADS, "the default number of threads can follow it"),
    Rule("system.memory_limit_bytes", (), "algorithms can be chosen by free memory"),
    Rule("cpu.logical_cores", THREADS, "the default number of threads follows it", external=True),
    Rule("cpu.microcode", (), "firmware of the processor", external=True),
    Rule("cpu.*", (), "the processor", external=True),
    Rule("system.machine", ANY, "another architecture", external=True),
    Rule("system.byte_order", ANY, "another architecture", external=True),
    Rule("system.kernel", (), "the kernel computes no floating-point number", external=True, harmless=True),
    Rule("system.locale", (), "it changes how text is shown", harmless=True),
    Rule("system.libc", ("elementwise", "rng"), "exp, log and the like can be the C library's"),
    Rule("system.container", (), "the runtime by itself changes no number", harmless=True),
    Rule("system.*", (), "the operating system"),
    # Settings of torch.
    Rule("torch.fp32_precision.*", GEMM, "the internal precision of float32 products"),
    Rule("torch.float32_matmul_precision", GEMM, "the internal precision of float32 products"),
    Rule("torch.matmul.*", GEMM, "how matrix products accumulate on CUDA", device="cuda"),
    Rule("torch.cudnn.*", ("conv", "attention", "norm"), "how cuDNN chooses its algorithms", device="cuda"),
    Rule("torch.attention.chosen", ("attention",), "torch picks this attention kernel"),
    Rule("torch.attention.*", ("attention",), "which attention kernels may be chosen"),
    Rule(
        "torch.deterministic_*",
        ("scatter", "reduction", "conv", "gather"),
        "it replaces kernels that are not",
    ),
    Rule("torch.preferred_blas_library", GEMM, "the library of matrix products on CUDA", device="cuda"),
    Rule("torch.preferred_linalg_library", (), "the library of factorisations on CUDA", device="cuda"),
    Rule("torch.quantized_engine", ("quantize", "gemm"), "the engine of quantised operators"),
    Rule("torch.fill_uninitialized_memory", (), "what memory holds that an operator fails to write"),
    Rule(
        "torch.mkldnn.*",
        ("elementwise", "conv", "gemm"),
        "whether oneDNN's kernels are used",
        library="torch",
    ),
    Rule("torch.flush_denormal", ANY, "subnormal results become zero"),
    Rule("torch.default_dtype", ANY, "the type of new tensors"),
    Rule("torch.inductor.*", (), "how compiled kernels are chosen"),
    Rule("torch.num_interop_threads", (), "operators run beside each other, none is split", harmless=True),
    # Loaded libraries.
    Rule(
        'libraries?"libcuda.so*',
        ("collective",),
        "the driver library compiles what is built at run time",
        external=True,
        device="cuda",
        causes=("driver.version",),
        compiles=True,
    ),
    Rule('libraries?"libnvidia-*', (), "a part of the driver", external=True, harmless=True),
    Rule('libraries?"*cublas*', GEMM, "cuBLAS runs the matrix products", device="cuda"),
    Rule('libraries?"*cudnn*', ("conv", "attention", "norm"), "cuDNN runs convolutions", device="cuda"),
    Rule('libraries?"*nccl*', ("collective",), "NCCL orders the all-reduce", device="cuda"),
    Rule('libraries?"*libgomp*', THREADS, "the OpenMP runtime splits the work"),
    Rule('libraries?"*libiomp*', THREADS, "the OpenMP runtime splits the work"),
    Rule('libraries?"*libomp*', THREADS, "the OpenMP runtime splits the work"),
    Rule('libraries?"numpy.libs/*', (), "a library that NumPy brings", causes=("packages.numpy",)),
    Rule('libraries?"libm.*', ("elementwise", "rng"), "exp, log and the like can be the C library's"),
    Rule('libraries?"*libtorch*', ANY, "torch's own kernels", causes=("packages.torch", "torch.version")),
    Rule('libraries?"*libc10*', ANY, "torch's own kernels", causes=("packages.torch", "torch.version")),
    Rule('libraries?"torch/*', (), "a part of torch", causes=("packages.torch", "torch.version")),
    Rule("libraries*", (), "a library that is loaded"),
    # Python.
    Rule("python.hash_seed", ("data",), "the order of sets follows it", causes=("variables.PYTHONHASHSEED",)),
    Rule(
        "python.hash_randomization",
        ("data",),
        "the order of sets follows it",
        causes=("variables.PYTHONHASHSEED",),
    ),
    Rule("python.version", ("rng",), "Python's generator and order of things can change"),
    Rule("python.packages_count", (), "a count", harmless=True),
    Rule("python.packages_sha256", (), "some package, listed or not, differs"),
    Rule("python.*", (), "the interpreter"),
    # The image, known by what is in it: packages and libraries of their own say more.
    Rule("image.digest", (), "another image can bring other libraries"),
    Rule("image.recipe", (), "another image can bring other libraries"),
    Rule("image.base", (), "another base can bring other libraries"),
    Rule("image.*", (), "a name, or how sure it is", harmless=True),
    # The code under review.
    Rule("source.probe_sha256", (), "the measuring code itself"),
    Rule("source.reprokit", (), "the measuring code itself"),
    Rule("source.commit", (), "a commit by itself changes no number", harmless=True),
    Rule("source.dirty", (), "uncommitted changes by themselves change no number", harmless=True),
    Rule(
        "run.other_variables*",
        (),
        "variables that are not on the list of those that change numbers",
        harmless=True,
    ),
)


def matches(field: str, pattern: str) -> bool:
    """Whether a field is of a pattern; one that begins otherwise is dismissed before a pattern is compiled."""
    plain = min(pattern.partition("*")[0], pattern.partition("?")[0], key=len)
    return field.startswith(plain) and (plain == pattern == field or fnmatchcase(field, pattern))


def movers(operator: str, library: Library, device: str, compiled: bool = False) -> list[Rule]:
    """The rules whose fields are known to move an operator class, in the order of suspicion.

    `compiled`: of a stage whose kernel is compiled at run time.
    """
    return [
        rule
        for rule in RULES
        if (operator in rule.operators or (compiled and rule.compiles))
        and rule.library in (None, library)
        and rule.device in (None, device)
    ]


@lru_cache(maxsize=1 << 16)  # more than the fields of two documents, however large
def find(field: str) -> tuple[int, Rule | None]:
    """Place in the order of suspicion and rule of a field; an unknown field comes after all known ones."""
    for place, rule in enumerate(RULES):
        if matches(field, rule.pattern):
            return place, rule
    return len(RULES), None
