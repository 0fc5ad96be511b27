"""`reprokit.yml`: which cells a repository is gated on, and the images they run in."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from reprokit.model.comparison import Level
from reprokit.model.fingerprint import MAX_SEED
from reprokit.model.trace import END, Document, Name, Text

MOST_CELLS = 256  # GitHub's limit for the jobs of one matrix
Size = Annotated[str, Meta(pattern=rf"^[1-9][0-9]*[kmg]?{END}", max_length=20, examples=["8g"])]
Pinned = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9._/:\-]*@sha256:[0-9a-f]{{64}}{END}",
        max_length=500,
        examples=["debian:bookworm@sha256:" + "0123456789abcdef" * 4],
    ),
]
Variable = Annotated[
    str, Meta(pattern=rf"^[A-Za-z_][A-Za-z0-9_]*{END}", max_length=200, examples=["OMP_NUM_THREADS"])
]


class Limits(Document, rename="kebab"):
    """What the container of a cell may use."""

    memory: Annotated[Size, Meta(description="Memory, such as `8g`.")] = "8g"
    cpus: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Processors; null: all of them.")
    ] = None
    pids: Annotated[int, Meta(description="Processes and threads.", ge=16)] = 1024
    shm: Annotated[Size, Meta(description="Shared memory, which loader workers and NCCL need.")] = "1g"


class Image(Document, rename="kebab"):
    """A pinned image: built from `base` and `requirements`, or pulled ready-made."""

    base: Annotated[Pinned | None, Meta(description="Base image as `name:tag@sha256:…`.")] = None
    python: Annotated[
        Annotated[str, Meta(pattern=rf"^3\.[0-9]{{1,2}}{END}", examples=["3.12"])] | None,
        Meta(
            description="Python of the base, such as `3.12`; the wheels of the requirements are made for it."
        ),
    ] = None
    requirements: Annotated[
        Text | None, Meta(description="Requirements with hashes; a path relative to this file.")
    ] = None
    wheels: Annotated[
        Text | None,
        Meta(description="Folder of wheels, relative to this file; where it is given, no index is asked."),
    ] = None
    pull: Annotated[
        Pinned | None, Meta(description="Ready image that has torch and NumPy, as `name:tag@sha256:…`.")
    ] = None
    driver: Annotated[
        Annotated[str, Meta(pattern=rf"^[0-9]+(\.[0-9]+)*{END}", max_length=20, examples=["525.60.13"])]
        | None,
        Meta(description="Least version of the NVIDIA driver."),
    ] = None
    seen: Annotated[Text | None, Meta(description="Where the digest of the base was found.")] = None


class Images(Document):
    """A list of images, such as the one that comes with reprokit."""

    version: Annotated[Literal[1], Meta(description="Version of this file's format.")]
    images: Annotated[dict[Name, Image], Meta(description="The images by name.", max_length=64)]


class Cell(Document, rename="kebab"):
    """One entry of the matrix: runner labels × image × required level."""

    name: Annotated[Name, Meta(description="Name of the cell; also names its baseline file and artifact.")]
    runs_on: Annotated[
        list[Annotated[Text, Meta(min_length=1)]],
        Meta(description="Runner labels.", min_length=1, max_length=20),
    ] = msgspec.field(default_factory=lambda: ["self-hosted"])
    image: Annotated[
        Name | None,
        Meta(
            description="Image of `images` or of those that come with reprokit; null: no container is started."
        ),
    ] = None
    engine: Annotated[
        Literal["docker", "local"] | None,
        Meta(
            description="docker: the probe runs in the image (the default where there is one); local: in an "
            "interpreter of this machine, which with an image must be that image's container already."
        ),
    ] = None
    python: Annotated[
        Annotated[Text, Meta(min_length=1)] | None,
        Meta(description="Interpreter that has torch and NumPy; null: that of the image, else `python3`."),
    ] = None
    exec: Annotated[
        list[Text],
        Meta(description="Words before the interpreter, such as `[srun, --gres=gpu:1]`.", max_length=50),
    ] = []
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device the probe runs on.")] = "cpu"
    gpus: Annotated[
        list[Annotated[Text, Meta(min_length=1)]],
        Meta(
            description="With `device: cuda` in an image: `all`, indices, UUIDs (`GPU-…`, `MIG-…`) or CDI names "
            "(`nvidia.com/gpu=0`).",
            max_length=64,
        ),
    ] = []
    level: Annotated[Level, Meta(description="Level of agreement that this cell requires.")] = "bit"
    mode: Annotated[
        Literal["default", "strict", "both"],
        Meta(
            description="default: as users run; strict: every determinism switch on; both: the two one after the "
            "other, each judged by itself."
        ),
    ] = "default"
    profile: Annotated[Literal["quick", "full"], Meta(description="Which stages of the probe run.")] = "full"
    seed: Annotated[int, Meta(description="Seed of the random stages.", ge=0, le=MAX_SEED)] = 0
    variables: Annotated[
        dict[Variable, str | int],
        Meta(description="Environment variables of the probe, and nothing else of the runner's."),
    ] = {}
    limits: Annotated[Limits, Meta(description="What its container may use.")] = Limits()
    timeout_minutes: Annotated[int, Meta(description="After it the probe is ended.", ge=1, le=1440)] = 30
    matrix: Annotated[
        dict[str, list[Any]],
        Meta(
            description="Keys of a cell with several values each: one cell for each combination, `exclude` takes "
            "some away and `include` adds some."
        ),
    ] = {}


class Config(Document, rename="kebab"):
    """The configuration of the gate in one repository."""

    version: Annotated[Literal[1], Meta(description="Version of this file's format.")]
    cells: Annotated[list[Cell], Meta(description="The matrix.", min_length=1, max_length=MOST_CELLS)]
    images: Annotated[dict[Name, Image], Meta(description="Images of this repository.", max_length=64)] = {}
    on_external_change: Annotated[
        Literal["fail", "neutral"],
        Meta(
            description="neutral: a drift that the change under review cannot have caused, such as a driver's, warns "
            "and does not fail; what holds at no level always fails."
        ),
    ] = "fail"
