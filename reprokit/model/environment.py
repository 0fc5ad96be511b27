"""The environment of a fingerprint: what the machine is, how its software is set, what is really loaded.

Every section stands at the root of a document, so that a dotted path such as `torch.cpu_capability` or
`libraries["libgomp.so.1"].build_id` names one field. A field that is null because it could not be read, or
was not asked for, has an entry with its reason in `absent`; other nulls mean what their description says.
"""

from typing import Annotated, Literal

from msgspec import Meta

from reprokit.model.trace import END, Document, Sha256, Text

Value = Annotated[str, Meta(max_length=32768)]
Names = Annotated[list[Text], Meta(max_length=500)]
Count = Annotated[int, Meta(ge=0)]


class System(Document, frozen=True):
    """Operating system and the limits it sets to this process."""

    os: Annotated[Text | None, Meta(description="Operating system, such as `Linux`.")]
    kernel: Annotated[Text | None, Meta(description="Release of the kernel.")]
    machine: Annotated[Text | None, Meta(description="Machine architecture, such as `x86_64`.")]
    libc: Annotated[Text | None, Meta(description="C library and its version, such as `glibc 2.36`.")]
    locale: Annotated[Text | None, Meta(description="Effective character-type locale and its encoding.")]
    byte_order: Annotated[Literal["little", "big"] | None, Meta(description="Byte order of the machine.")]
    container: Annotated[Text | None, Meta(description="Container runtime around this process, or `none`.")]
    cpu_limit: Annotated[
        float | None,
        Meta(description="Processors the control group allows, fractions included; null: no limit."),
    ]
    memory_limit_bytes: Annotated[
        int | None, Meta(description="Memory in bytes the control group allows; null: no limit.")
    ]


class Python(Document, frozen=True):
    """The interpreter and the whole set of its packages."""

    version: Annotated[Text | None, Meta(description="Version of the interpreter.")]
    implementation: Annotated[Text | None, Meta(description="Implementation, such as `CPython`.")]
    compiler: Annotated[Text | None, Meta(description="Compiler that built the interpreter.")]
    hash_seed: Annotated[
        Text | None,
        Meta(description="Requested PYTHONHASHSEED; null: not set, so that each run draws its own."),
    ]
    hash_randomization: Annotated[
        bool | None, Meta(description="Whether string hashes differ from run to run.")
    ]
    optimize: Annotated[
        int | None, Meta(description="Optimisation level; from 1 on assertions are not executed.")
    ]
    packages_count: Annotated[Count | None, Meta(description="How many distributions the interpreter finds.")]
    packages_sha256: Annotated[
        Sha256 | None, Meta(description="Hash over the sorted `name==version` lines of all distributions.")
    ]


class Cpu(Document, frozen=True):
    """The processor as the hardware is, whatever the software is told to use of it."""

    vendor: Annotated[Text | None, Meta(description="Vendor of the processor.")]
    model: Annotated[Text | None, Meta(description="Model name of the processor.")]
    family: Annotated[int | None, Meta(description="Family number (x86) or architecture version (Arm).")]
    model_number: Annotated[int | None, Meta(description="Model number (x86) or part number (Arm).")]
    stepping: Annotated[int | None, Meta(description="Stepping (x86) or revision (Arm).")]
    microcode: Annotated[Text | None, Meta(description="Revision of the microcode; null on Arm.")]
    isa: Annotated[
        Text | None,
        Meta(description="Highest instruction-set level of the hardware, in oneDNN's terms, or `unknown`."),
    ]
    flags_sha256: Annotated[Sha256 | None, Meta(description="Hash over the sorted feature flags.")]
    logical_cores: Annotated[Count | None, Meta(description="Logical processors of the machine.")]
    available_cores: Annotated[Count | None, Meta(description="Logical processors this process may run on.")]
    sockets: Annotated[Count | None, Meta(description="Processor packages.")]
    numa_nodes: Annotated[Count | None, Meta(description="NUMA nodes.")]


class Ecc(Document, frozen=True):
    """Error correction of a GPU's memory."""

    current: Annotated[bool | None, Meta(description="Whether error correction is on.")]
    pending: Annotated[bool | None, Meta(description="Whether it will be on after the next reset.")]


class Mig(Document, frozen=True):
    """Whether a GPU is partitioned, and which instance this entry is."""

    mode: Annotated[bool | None, Meta(description="Whether MIG mode is on.")]
    profile: Annotated[Text | None, Meta(description="Profile, such as `1g.10gb`; null: no instance.")]
    sm_count: Annotated[Count | None, Meta(description="Multiprocessors of the instance; null: no instance.")]


class Gpu(Document, frozen=True):
    """One GPU, or one MIG instance of it, as NVML shows it to this process."""

    index: Annotated[Count, Meta(description="NVML's index of the physical GPU.")]
    cuda_index: Annotated[Count | None, Meta(description="Torch's index of this device.")]
    name: Annotated[Text | None, Meta(description="Product name of the physical GPU.")]
    compute_capability: Annotated[Text | None, Meta(description="CUDA compute capability, such as `9.0`.")]
    sm_count: Annotated[Count | None, Meta(description="Multiprocessors of the physical GPU.")]
    max_threads_per_sm: Annotated[
        Count | None, Meta(description="Resident threads per multiprocessor, at most.")
    ]
    memory_bytes: Annotated[
        Count | None, Meta(description="Memory in bytes of the GPU or of the MIG instance.")
    ]
    ecc: Annotated[Ecc, Meta(description="Error correction.")]
    mig: Annotated[Mig, Meta(description="Multi-instance GPU.")]
    persistence_mode: Annotated[
        bool | None, Meta(description="Whether the driver stays loaded without clients.")
    ]
    power_limit_watts: Annotated[float | None, Meta(description="Enforced power limit in watts.")]
    nvlinks: Annotated[
        Count | None, Meta(description="Active NVLink links; 0 also where there is no NVLink.")
    ]
    nvswitch: Annotated[bool | None, Meta(description="Whether an active link ends in an NVSwitch.")]
    uuid: Annotated[Text | None, Meta(description="UUID of the device, private.")]
    pci_bus_id: Annotated[Text | None, Meta(description="PCI address, private.")]
    vbios: Annotated[Text | None, Meta(description="Version of the video BIOS, private.")]


class Driver(Document, frozen=True):
    """The NVIDIA driver and the CUDA libraries in use."""

    version: Annotated[Text | None, Meta(description="Version of the NVIDIA driver.")]
    cuda_api: Annotated[Text | None, Meta(description="Newest CUDA version the driver supports.")]
    libcuda_version: Annotated[Text | None, Meta(description="Version of the libcuda that is loaded.")]
    libcuda_path: Annotated[
        Text | None, Meta(description="File of that libcuda; `compat/…` is a forward-compatibility copy.")
    ]
    cuda_runtime: Annotated[Text | None, Meta(description="Version of the CUDA runtime that is loaded.")]
    cudnn: Annotated[Text | None, Meta(description="Version of the cuDNN that torch uses.")]
    nccl: Annotated[Text | None, Meta(description="Version of the NCCL that torch uses.")]
    nvrtc: Annotated[Text | None, Meta(description="Version of the NVRTC that is loaded.")]
    ptxas: Annotated[Text | None, Meta(description="Version of the ptxas that Triton uses.")]
    triton: Annotated[Text | None, Meta(description="Version of the Triton package.")]
    module_loading: Annotated[
        Literal["eager", "lazy"] | None, Meta(description="Effective loading of CUDA modules.")
    ]


class TorchBuild(Document, frozen=True):
    """How torch was built."""

    blas: Annotated[Text | None, Meta(description="BLAS that torch was built with.")]
    lapack: Annotated[Text | None, Meta(description="LAPACK that torch was built with.")]
    mkl: Annotated[Text | None, Meta(description="Version of the MKL in it; null: built without.")]
    onednn: Annotated[Text | None, Meta(description="Version of the oneDNN in it; null: built without.")]
    onednn_commit: Annotated[Text | None, Meta(description="Commit of that oneDNN; null: built without.")]
    openmp: Annotated[Text | None, Meta(description="OpenMP specification date; null: built without.")]
    compiler: Annotated[Text | None, Meta(description="Compiler that built torch.")]
    config_sha256: Annotated[Sha256 | None, Meta(description="Hash over the whole build configuration.")]


class Fp32Precision(Document, frozen=True):
    """Internal precision of fp32 operators: `ieee`, `tf32`, `bf16`; `none`: a wider setting decides."""

    all: Annotated[Text | None, Meta(description="Setting for every backend.")]
    cuda_matmul: Annotated[Text | None, Meta(description="cuBLAS matrix products.")]
    cudnn: Annotated[Text | None, Meta(description="Setting for all of cuDNN.")]
    cudnn_conv: Annotated[Text | None, Meta(description="cuDNN convolutions.")]
    cudnn_rnn: Annotated[Text | None, Meta(description="cuDNN recurrent layers.")]
    mkldnn: Annotated[Text | None, Meta(description="Setting for all of oneDNN.")]
    mkldnn_matmul: Annotated[Text | None, Meta(description="oneDNN matrix products.")]
    mkldnn_conv: Annotated[Text | None, Meta(description="oneDNN convolutions.")]
    mkldnn_rnn: Annotated[Text | None, Meta(description="oneDNN recurrent layers.")]


class CudnnSettings(Document, frozen=True):
    """torch.backends.cudnn."""

    enabled: Annotated[bool | None, Meta(description="Whether torch may use cuDNN.")]
    benchmark: Annotated[bool | None, Meta(description="Whether algorithms are chosen by timing them.")]
    deterministic: Annotated[
        bool | None, Meta(description="Whether only deterministic algorithms are chosen.")
    ]
    allow_tf32: Annotated[bool | None, Meta(description="Legacy switch for TF32 in cuDNN.")]
    version: Annotated[int | None, Meta(description="cuDNN's version number; null: torch has none.")]


class MatmulSettings(Document, frozen=True):
    """torch.backends.cuda.matmul."""

    allow_tf32: Annotated[bool | None, Meta(description="Legacy switch for TF32 in cuBLAS.")]
    fp16_reduced_precision_reduction: Annotated[
        bool | None, Meta(description="Whether fp16 products may be reduced in fp16.")
    ]
    fp16_split_k: Annotated[bool | None, Meta(description="Whether fp16 products may use split-K.")]
    bf16_reduced_precision_reduction: Annotated[
        bool | None, Meta(description="Whether bf16 products may be reduced in bf16.")
    ]
    bf16_split_k: Annotated[bool | None, Meta(description="Whether bf16 products may use split-K.")]
    fp16_accumulation: Annotated[bool | None, Meta(description="Whether fp16 products accumulate in fp16.")]


class Attention(Document, frozen=True, omit_defaults=True):
    """Which kernels scaled dot-product attention may choose, and the one that it chooses.

    Keys with a default came later than the first baselines and are left out where nothing is known.
    """

    flash: Annotated[bool | None, Meta(description="FlashAttention.")]
    memory_efficient: Annotated[bool | None, Meta(description="Memory-efficient attention.")]
    math: Annotated[bool | None, Meta(description="The reference written in operators.")]
    cudnn: Annotated[bool | None, Meta(description="cuDNN's attention.")]
    math_reduced_precision: Annotated[
        bool | None, Meta(description="Whether the reference may reduce in fp16 or bf16.")
    ]
    chosen: Annotated[
        Text | None,
        Meta(
            description="Kernel that torch picks for the probe's attention in float32, such as `flash_attention`: "
            "on CUDA where this process uses it, else on the CPU."
        ),
    ] = None


class MkldnnSettings(Document, frozen=True):
    """torch.backends.mkldnn."""

    available: Annotated[bool | None, Meta(description="Whether torch has oneDNN.")]
    enabled: Annotated[bool | None, Meta(description="Whether torch may use oneDNN.")]
    deterministic: Annotated[bool | None, Meta(description="Whether oneDNN must be deterministic.")]


class OpenMp(Document, frozen=True):
    """Intra-operator parallelism."""

    backend: Annotated[Text | None, Meta(description="Parallel backend of torch.")]
    max_threads: Annotated[
        Count | None, Meta(description="omp_get_max_threads(); null: built without OpenMP.")
    ]
    mkl_threads: Annotated[Count | None, Meta(description="mkl_get_max_threads(); null: built without MKL.")]


class Inductor(Document, frozen=True):
    """Settings of torch.compile's backend, where it is already imported."""

    max_autotune: Annotated[bool | None, Meta(description="Whether kernels are chosen by timing them.")]
    max_autotune_gemm: Annotated[bool | None, Meta(description="The same for matrix products only.")]
    coordinate_descent_tuning: Annotated[bool | None, Meta(description="Whether tilings are tuned further.")]
    cudagraphs: Annotated[bool | None, Meta(description="Whether CUDA graphs are used.")]
    deterministic: Annotated[
        bool | None, Meta(description="Whether choices that depend on timing are avoided.")
    ]
    emulate_precision_casts: Annotated[
        bool | None, Meta(description="Whether fused casts round as eager ones do.")
    ]


class Torch(Document, frozen=True):
    """torch: how it was built and which settings are effective in this process."""

    version: Annotated[Text | None, Meta(description="Version of torch.")]
    git_commit: Annotated[Text | None, Meta(description="Commit that torch was built from.")]
    cuda_build: Annotated[Text | None, Meta(description="CUDA version torch was built for; null: none.")]
    hip_build: Annotated[Text | None, Meta(description="ROCm version torch was built for; null: none.")]
    build: Annotated[TorchBuild, Meta(description="How torch was built.")]
    cpu_capability: Annotated[
        Text | None, Meta(description="Effective vector level of torch's own CPU kernels.")
    ]
    num_threads: Annotated[Count | None, Meta(description="Threads within one operator.")]
    num_interop_threads: Annotated[Count | None, Meta(description="Threads between operators.")]
    default_dtype: Annotated[Text | None, Meta(description="Default floating-point type, such as `float32`.")]
    flush_denormal: Annotated[
        bool | None, Meta(description="Whether a subnormal result was measured to become zero.")
    ]
    deterministic_algorithms: Annotated[bool | None, Meta(description="torch.use_deterministic_algorithms.")]
    deterministic_warn_only: Annotated[bool | None, Meta(description="Whether it only warns.")]
    fill_uninitialized_memory: Annotated[
        bool | None, Meta(description="Whether it also fills empty tensors.")
    ]
    float32_matmul_precision: Annotated[Text | None, Meta(description="`highest`, `high` or `medium`.")]
    fp32_precision: Annotated[Fp32Precision, Meta(description="Internal precision of fp32 operators.")]
    cudnn: Annotated[CudnnSettings, Meta(description="cuDNN's switches.")]
    matmul: Annotated[MatmulSettings, Meta(description="Switches of CUDA matrix products.")]
    attention: Annotated[Attention, Meta(description="Attention kernels that may be chosen.")]
    preferred_blas_library: Annotated[Text | None, Meta(description="BLAS that torch prefers on CUDA.")]
    preferred_linalg_library: Annotated[
        Text | None, Meta(description="Linear algebra torch prefers on CUDA.")
    ]
    mkldnn: Annotated[MkldnnSettings, Meta(description="oneDNN's switches.")]
    mkl_cbwr: Annotated[
        Text | None,
        Meta(description="Effective mode of MKL's reproducibility; `BRANCH_OFF`: not asked for."),
    ]
    onednn_isa: Annotated[Text | None, Meta(description="Effective instruction set as oneDNN describes it.")]
    onednn_kernel: Annotated[Text | None, Meta(description="Implementation oneDNN chose for a small ReLU.")]
    openmp: Annotated[OpenMp, Meta(description="Intra-operator parallelism.")]
    quantized_engine: Annotated[Text | None, Meta(description="Engine of quantised operators.")]
    inductor: Annotated[Inductor | None, Meta(description="torch.compile's settings; null: not imported.")]


class Blas(Document, frozen=True):
    """The BLAS that NumPy runs."""

    name: Annotated[Text | None, Meta(description="BLAS that NumPy was built with.")]
    version: Annotated[Text | None, Meta(description="Version of the BLAS that is loaded.")]
    core: Annotated[Text | None, Meta(description="Kernel set it really runs, such as `SkylakeX`.")]
    config: Annotated[Text | None, Meta(description="Configuration it tells of itself.")]
    threading: Annotated[
        Literal["sequential", "pthreads", "openmp"] | None, Meta(description="Its threading.")
    ]
    threads: Annotated[Count | None, Meta(description="Its threads.")]


class NumPy(Document, frozen=True):
    """NumPy, the BLAS it runs and the vector kernels it chose."""

    version: Annotated[Text | None, Meta(description="Version of NumPy.")]
    blas: Annotated[Blas, Meta(description="The BLAS that NumPy runs.")]
    cpu_baseline: Annotated[Names | None, Meta(description="Features that every kernel of NumPy uses.")]
    cpu_dispatch: Annotated[Names | None, Meta(description="Optional kernel sets that are enabled.")]
    cpu_features_sha256: Annotated[Sha256 | None, Meta(description="Hash over all enabled features, sorted.")]


class Library(Document, frozen=True):
    """A shared library that is mapped into the process."""

    path: Annotated[
        Text, Meta(description="File relative to its package; only the name outside of packages.")
    ]
    version: Annotated[Text | None, Meta(description="Version in the file's name; null: the name has none.")]
    build_id: Annotated[
        Annotated[str, Meta(pattern=rf"^[0-9a-f]{{2,128}}{END}")] | None,
        Meta(description="GNU build id in hexadecimal; null: the file carries none."),
    ]
    sha256: Annotated[Sha256 | None, Meta(description="Hash of the file; null where a build id names it.")]


class Image(Document, frozen=True):
    """The image whose container the process ran in."""

    name: Annotated[Text | None, Meta(description="Name in the configuration.")]
    digest: Annotated[
        Sha256 | None, Meta(description="Digest of its manifest; null where it was built on this machine.")
    ]
    recipe: Annotated[
        Sha256 | None,
        Meta(description="Hash over Dockerfile, base and locked requirements; null where it was not built."),
    ]
    base: Annotated[
        Text | None, Meta(description="Base as `name:tag@sha256:…`; null where it was not built.")
    ]
    checked: Annotated[
        bool, Meta(description="Whether a container engine confirmed it; false: it is only claimed.")
    ]


class Source(Document, frozen=True):
    """The repository that the process ran in, and the code that measured it."""

    commit: Annotated[
        Annotated[str, Meta(pattern=rf"^(?:[0-9a-f]{{40}}|[0-9a-f]{{64}}){END}")] | None,
        Meta(description="Commit of the repository around the working directory."),
    ]
    dirty: Annotated[bool | None, Meta(description="Whether tracked files differ from that commit.")]
    reprokit: Annotated[Text | None, Meta(description="Version of reprokit.")]
    probe_sha256: Annotated[
        Sha256 | None, Meta(description="Hash over the files of the probe and its collectors.")
    ]


class AbsentField(Document, frozen=True):
    """Why a field is null."""

    field: Annotated[
        Text, Meta(description="Dotted path of the field; a final `*` stands for all fields below.")
    ]
    state: Annotated[
        Literal["unavailable", "not_asked"],
        Meta(description="unavailable: it could not be read; not_asked: nobody wanted it."),
    ]
    reason: Annotated[Text, Meta(description="One sentence that says why.")]


class Environment(Document, frozen=True):
    """Everything about a machine and its software that can change numbers."""

    system: Annotated[System, Meta(description="Operating system and its limits.")]
    python: Annotated[Python, Meta(description="The interpreter.")]
    packages: Annotated[
        Annotated[dict[Text, Text], Meta(max_length=5000)],
        Meta(description="Version per distribution: those that change numbers, or all with detail full."),
    ]
    cpu: Annotated[Cpu, Meta(description="The processor.")]
    gpus: Annotated[Annotated[list[Gpu], Meta(max_length=512)], Meta(description="GPUs and MIG instances.")]
    driver: Annotated[Driver, Meta(description="The NVIDIA driver and CUDA libraries.")]
    torch: Annotated[Torch | None, Meta(description="torch; null: it cannot be imported.")]
    numpy: Annotated[NumPy | None, Meta(description="NumPy; null: it cannot be imported.")]
    libraries: Annotated[
        Annotated[dict[Text, Library], Meta(max_length=2000)],
        Meta(description="Mapped libraries by name, without the suffixes that wheels add."),
    ]
    variables: Annotated[
        Annotated[dict[Text, Value], Meta(max_length=2000)],
        Meta(
            description="Environment variables that change numbers, where set; private values are replaced."
        ),
    ]
    source: Annotated[Source, Meta(description="Repository and measuring code.")]
    image: Annotated[
        Image | None, Meta(description="The image that it ran in; null: none, or nobody told of one.")
    ]
    absent: Annotated[
        Annotated[list[AbsentField], Meta(max_length=5000)],
        Meta(description="Fields that are null, and why."),
    ]


class OtherVariables(Document, frozen=True):
    """The variables that are not on the list of those that change numbers."""

    count: Annotated[Count, Meta(description="How many there are.")]
    sha256: Annotated[Sha256, Meta(description="Hash over their sorted `NAME=value` lines.")]
    values: Annotated[
        Annotated[dict[Text, Value], Meta(max_length=5000)] | None,
        Meta(description="Their values, but for those with a secret's name; null unless detail is full."),
    ]


class Run(Document, frozen=True):
    """What may differ between two equal runs."""

    detail: Annotated[
        Literal["private", "full"], Meta(description="Whether what names the machine was asked for too.")
    ]
    other_variables: Annotated[OtherVariables, Meta(description="Environment variables that are on no list.")]
    started: Annotated[
        str,
        Meta(
            description="When it started, UTC, ISO 8601.",
            pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z" + END,
        ),
    ]


class EnvironmentReport(Environment, frozen=True):
    """The environment alone, as a document of its own."""

    document: Annotated[Literal["environment"], Meta(description="Type of this document.")]
    schema_version: Annotated[Literal[1], Meta(description="Version of this document's schema.")]
    digest: Annotated[Sha256, Meta(description="Hash of the canonical content without `digest` and `run`.")]
    run: Annotated[Run, Meta(description="What may differ between two equal runs.")]
