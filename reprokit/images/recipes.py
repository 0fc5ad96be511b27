"""What an image is made of: those that come with reprokit, and those of a repository's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.config import Config, Image
from reprokit.model.matrix import read_images
from reprokit.model.reading import excerpt, nearest, read_bytes

_PACKAGE = Path(__file__).resolve().parent
# an installation has them beside this module, a checkout at its root
FOLDER = _PACKAGE / "docker" if (_PACKAGE / "docker").is_dir() else _PACKAGE.parent.parent / "docker"


OWN_NAMES = "reprokit/"  # how the names of images that reprokit built begin


@dataclass(frozen=True)
class Source:
    """An image by its name, and the folder that its paths are relative to."""

    name: str
    image: Image
    folder: Path


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is in a built image."""

    name: str
    base: str
    python: str
    requirements: bytes
    dockerfile: bytes

    @property
    def digest(self) -> str:
        """`sha256:…` over all of it but the name: equal recipes are one image. Wheels are in it by their hashes."""
        content = {
            "base": self.base,
            "dockerfile": self.dockerfile.decode(),
            "python": self.python,
            "requirements": self.requirements.decode(),
        }
        return canonical.digest(content)

    @property
    def tag(self) -> str:
        """The name under which the engine keeps it."""
        return f"{OWN_NAMES}{self.name.lower()}:{self.digest.removeprefix('sha256:')[:12]}"


def builtin() -> dict[str, Source]:
    """The images that come with reprokit, by name."""
    images = read_images(FOLDER / "images.yml").images
    return {name: Source(name, image, FOLDER) for name, image in images.items()}


def available(config: Config | None, folder: Path) -> dict[str, Source]:
    """All images that a cell can name; `folder` is that of the configuration."""
    own = {} if config is None else config.images
    return builtin() | {name: Source(name, image, folder) for name, image in own.items()}


def find(sources: Mapping[str, Source], name: str) -> Source:
    """The image of that name.

    Raises:
        InvalidInput: there is none.
    """
    if name not in sources:
        raise InvalidInput(
            f"no image {excerpt(name)}{nearest(name, sources)}: the images are {', '.join(sorted(sources))}"
        )
    return sources[name]


def recipe(source: Source) -> Recipe:
    """The recipe of an image that is built.

    Raises:
        InvalidInput: its requirements cannot be read.
    """
    image = source.image
    assert image.base and image.python and image.requirements
    return Recipe(
        name=source.name,
        base=image.base,
        python=image.python,
        requirements=_text(source.folder / image.requirements),
        dockerfile=_text(FOLDER / "Dockerfile"),
    )


def versions(requirements: bytes) -> dict[str, str]:
    """Version by package of a lock."""
    lines = (
        line.split(";")[0].split("--hash")[0].strip(" \\") for line in requirements.decode().splitlines()
    )
    pairs = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.strip().lower(): version.strip() for name, _, version in pairs}


def _text(path: Path) -> bytes:
    data = read_bytes(path)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: byte {error.start}: not UTF-8") from error
    return data
