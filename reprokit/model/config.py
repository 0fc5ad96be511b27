"""`reprokit.yml`: which cells a repository is gated on."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from reprokit.model.comparison import Level
from reprokit.model.fingerprint import MAX_SEED
from reprokit.model.trace import Document, Name


class Cell(Document, rename="kebab"):
    """One entry of the matrix: runner labels × image × required level."""

    name: Annotated[Name, Meta(description="Name of the cell; also names its baseline file and artifact.")]
    runs_on: Annotated[list[str], Meta(description="Runner labels.", min_length=1)] = msgspec.field(
        default_factory=lambda: ["self-hosted"]
    )
    image: Annotated[
        str | None, Meta(description="Name of the pinned image; null runs without a container.")
    ] = None
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device the probe runs on.")] = "cpu"
    level: Annotated[Level, Meta(description="Level of agreement that this cell requires.")] = "bit"
    mode: Annotated[Literal["default"], Meta(description="Mode of the probe.")] = "default"
    profile: Annotated[Literal["quick", "full"], Meta(description="Which stages of the probe run.")] = "full"
    seed: Annotated[int, Meta(description="Seed of the random stages.", ge=0, le=MAX_SEED)] = 0
    variables: Annotated[
        dict[str, str],
        Meta(description="Environment variables of the probe, and nothing else of the runner's."),
    ] = {}


class Config(Document):
    """The configuration of the gate in one repository."""

    version: Annotated[Literal[1], Meta(description="Version of this file's format.")]
    cells: Annotated[list[Cell], Meta(description="The matrix.", min_length=1, max_length=256)]
