"""Bringing an image onto this machine: reused where it is there, else pulled or built."""

from __future__ import annotations

import io
import os
import re
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reprokit.engines import owner
from reprokit.engines.docker import OWNER
from reprokit.errors import InvalidInput, ProbeFailed
from reprokit.images.recipes import Recipe, Source, recipe
from reprokit.images.registry import pulled
from reprokit.model.reading import read_bytes

if TYPE_CHECKING:
    from docker import DockerClient

RECIPE = "io.reprokit.recipe"  # label of every image that reprokit built: the digest of its recipe
NAME = "io.reprokit.image"
STAGE = "io.reprokit.stage"
PYTHON = "/opt/reprokit/bin/python"  # of a built image
PIP_CONFIG = "REPROKIT_PIP_CONFIG"
_LAST_LINES = 20
_FORGETTING_SECONDS = 15
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the classic builder shows standard error in red
Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """An image that is on this machine.

    Attributes:
        id: the engine's id of it.
        python: the interpreter in it that has torch.
        told: the section `image` of a fingerprint that is measured in it.
    """

    id: str
    python: str
    told: dict[str, Any]


def prepare(client: DockerClient, source: Source, say: Say, wheels: Path | None = None) -> Prepared:
    """Have the image of `source` on this machine; `wheels` is a folder of wheels instead of its own.

    Raises:
        InvalidInput: a file that it is made of cannot be read.
        ProbeFailed: its build failed.
        ServiceFailed: a registry failed.
    """
    image = source.image
    if image.pull is not None:
        name = pulled(client, image.pull, say)
        told = image_section(source.name, digest=name.partition("@")[2])
        return Prepared(str(client.images.get(name).id), "python3", told)
    sweep(client)
    made = recipe(source)
    told = image_section(source.name, recipe=made.digest, base=made.base)
    found = built(client, made)
    if found is None:
        if wheels is None and image.wheels is not None:
            wheels = source.folder / image.wheels
        found = _build(client, made, wheels, say)
    else:
        say(f"image {source.name}: {found[:19]} is there")
    return Prepared(found, PYTHON, told)


def built(client: DockerClient, made: Recipe) -> str | None:
    """Id of the image that was built from a recipe; None: it is not there.

    By its own name: whatever is built upon it inherits its labels, and is another image.
    """
    from docker.errors import ImageNotFound

    try:
        image = client.images.get(made.tag)
    except ImageNotFound:
        return None
    return str(image.id) if image.labels.get(RECIPE) == made.digest else None


def sweep(client: DockerClient) -> None:
    """Remove the stages of builds that were killed: pip's configuration is in them."""
    from docker.errors import DockerException

    with suppress(DockerException, OSError):  # an engine that cannot do it says so at what comes next
        for image in client.images.list(filters={"dangling": True, "label": STAGE}):
            if owner.ended(image.labels.get(OWNER, "")):
                with suppress(DockerException):  # another run is at it
                    client.images.remove(str(image.id))


def image_section(
    name: str,
    digest: str | None = None,
    recipe: str | None = None,
    base: str | None = None,
    checked: bool = True,
) -> dict[str, Any]:
    """The section `image` of a fingerprint; see `reprokit.model.environment.Image`."""
    return {"name": name, "digest": digest, "recipe": recipe, "base": base, "checked": checked}


def _build(client: DockerClient, made: Recipe, wheels: Path | None, say: Say) -> str:
    from docker.errors import APIError, DockerException

    base = pulled(client, made.base, say)
    # a base without Python gets its own packages over the network; pip needs none where it has the wheels
    stages = [(None, None, None)] if wheels is None else [("python", None, None), (None, "none", wheels)]
    steps = _Steps(made.name, say)
    try:
        for target, network, folder in stages:
            with _context(made, folder) as context:
                events = client.api.build(
                    fileobj=context,
                    custom_context=True,
                    tag=None if target else made.tag,
                    target=target,
                    buildargs={
                        "BASE": base,
                        "PYTHON": made.python,
                        "RECIPE": made.digest,
                        "OWNER": owner.own(),
                    },
                    labels=None if target else _labels(made),
                    network_mode=network,
                    rm=True,
                    forcerm=True,
                    decode=True,
                )
                try:
                    for event in events:  # to its end, which also gives the connection back
                        steps.hear(event)
                except KeyboardInterrupt:
                    events.close()  # upon which the engine ends the build
                    raise
            steps.check()
    except APIError as error:
        raise ProbeFailed(f"image {made.name} cannot be built: {error.explanation or error}") from error
    except (DockerException, OSError) as error:
        raise ProbeFailed(f"image {made.name} cannot be built: the engine failed: {error}") from error
    finally:
        _forget_stages(client, made)
    found = built(client, made)
    if found is None:
        raise ProbeFailed(f"image {made.name}: the engine ended the build without an image")
    return found


def _forget_stages(client: DockerClient, made: Recipe) -> None:
    """Remove the stage that pip ran in, with its configuration, and what a failed build left.

    One by one, because an engine prunes for one client at a time only; again for a while, because one that was told
    to end a build takes a moment.
    """
    from docker.errors import DockerException

    filters = {"dangling": True, "label": [f"{STAGE}={made.digest}", f"{OWNER}={owner.own()}"]}
    deadline = time.monotonic() + _FORGETTING_SECONDS
    with suppress(DockerException, OSError):  # the engine is gone, which is said already
        while (left := client.images.list(filters=filters)) and time.monotonic() < deadline:
            for image in left:
                with suppress(DockerException):  # its container still runs
                    client.images.remove(str(image.id))
            time.sleep(0.2)


def _labels(made: Recipe) -> dict[str, str]:
    name, _, digest = made.base.partition("@")
    return {
        RECIPE: made.digest,
        NAME: made.name,
        "org.opencontainers.image.base.name": name,
        "org.opencontainers.image.base.digest": digest,
    }


@contextmanager
def _context(made: Recipe, wheels: Path | None) -> Iterator[IO[bytes]]:
    """The build's context as a tar archive."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            _add(archive, "Dockerfile", made.dockerfile)
            _add(archive, "requirements.lock", made.requirements)
            _add(archive, "pip.conf", _pip_config())
            folder = tarfile.TarInfo("wheels")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
            for wheel in _wheels(wheels):
                with wheel.open("rb") as stream:
                    entry = tarfile.TarInfo(f"wheels/{wheel.name}")
                    entry.size, entry.mode = wheel.stat().st_size, 0o644
                    archive.addfile(entry, stream)
        file.seek(0)
        yield file


def _wheels(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise InvalidInput(f"{folder}: a folder of wheels is expected there, and none is in it")
    return found


def _pip_config() -> bytes:
    """The configuration with which pip finds packages; it reaches a stage of the build and never the image."""
    path = os.environ.get(PIP_CONFIG)
    return read_bytes(path) if path else b""


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))


class _Steps:
    """Follows the classic builder: `Step 3/9 : RUN …`, its output, at last an image or an error."""

    def __init__(self, name: str, say: Say) -> None:
        self._name = name
        self._say = say
        self._step = "its start"
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._error: str | None = None

    def hear(self, event: dict[str, Any]) -> None:
        """Take one event."""
        if "error" in event:
            self._error = str(event["error"])
        for line in str(event.get("stream", "")).splitlines():
            line = _COLOUR.sub("", line).strip()
            if line.startswith("Step ") and " : " in line:
                number, _, command = line.removeprefix("Step ").partition(" : ")
                self._step = f"step {number}, `{' '.join(command.split())[:160]}`"
                self._lines.clear()
                self._say(f"image [{number}] {' '.join(command.split())[:100]}")
            elif line and not line.startswith(("--->", "Removing intermediate container")):
                self._lines.append(line)
                self._say(line)

    def check(self) -> None:
        """Raises ProbeFailed where the build has failed."""
        if self._error is not None:
            raise ProbeFailed(self._failure(self._error))

    def _failure(self, error: str) -> str:
        last = " | ".join(self._lines) or " ".join(error.split())
        hint = ""
        if "No matching distribution" in last or "Could not find a version" in last:
            hint = (
                f" (what the default index lacks, such as torch for CPUs alone, comes from an index that the pip "
                f"configuration in {PIP_CONFIG} names, or from a folder of wheels)"
            )
        elif "no space left on device" in f"{last} {error}".lower():
            hint = " (the disk is full: `reprokit image prune` removes what nobody asks for any more)"
        return f"image {self._name} cannot be built: {self._step} failed{hint}; its last lines: {last}"
