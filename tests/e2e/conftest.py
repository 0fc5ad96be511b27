"""An engine, a registry, and images built from the repository's own Dockerfile and lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from docker import DockerClient

from reprokit.engines import docker as engines
from reprokit.images.prepare import Prepared, prepare
from reprokit.images.recipes import FOLDER, Source
from reprokit.model.config import Image
from tests.e2e import engine as parts


@contextmanager
def needed() -> Iterator[None]:
    """Skip what this machine cannot run, but where these tests were asked for by REPROKIT_E2E=1."""
    try:
        yield
    except parts.Missing as missing:
        if os.environ.get("REPROKIT_E2E") == "1":
            pytest.fail(f"REPROKIT_E2E=1, but: {missing}")
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """DOCKER_HOST of a container engine; this process's too, and that of what it starts."""
    with ExitStack() as stack:
        # not pytest's own folder, into which no other user can look
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="reprokit-engine-")))
        folder.chmod(0o711)
        with needed():
            host = stack.enter_context(parts.engine(folder))
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOCKER_HOST", host)
        yield host


@pytest.fixture(scope="session")
def client(engine: str) -> Iterator[DockerClient]:
    """That engine for the tests' own process."""
    with engines.connected() as connected:
        yield connected


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`127.0.0.1:PORT` of a registry."""
    with ExitStack() as stack:
        with needed():
            address = stack.enter_context(parts.registry(tmp_path_factory.mktemp("registry")))
        yield address


@pytest.fixture(scope="session")
def base_image(engine: str, registry: str) -> str:
    """Debian with Python, by digest in the registry and not on the engine."""
    with needed():
        return parts.base_image(engine, registry)


@pytest.fixture(scope="session")
def requirements() -> Path:
    """The lock of the image `cpu`."""
    return FOLDER / "cpu.lock"


@pytest.fixture(scope="session")
def wheelhouse(requirements: Path) -> Path:
    """The wheels of that lock."""
    with needed():
        return parts.wheelhouse(requirements)


@pytest.fixture(scope="session")
def source(base_image: str, requirements: Path, wheelhouse: Path) -> Source:
    """The image `ours`: the lock of `cpu` on the base image."""
    image = Image(base=base_image, python="3.11", requirements=requirements.name, wheels=str(wheelhouse))
    return Source("ours", image, requirements.parent)


@pytest.fixture(scope="session")
def probe_image(client: DockerClient, source: Source) -> Prepared:
    """That image, built."""
    return prepare(client, source, lambda line: None)


@pytest.fixture(scope="session")
def other_source(source: Source, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The image `other`, which has another NumPy and is the same for the rest."""
    folder = tmp_path_factory.mktemp("other")
    lock = folder / "other.lock"
    wanted = (FOLDER / "cpu.lock").read_text().splitlines()
    place = next(index for index, line in enumerate(wanted) if line.startswith("numpy=="))
    with needed():
        wanted[place : place + 2] = _locked("numpy==2.2.6")
        lock.write_text("\n".join(wanted) + "\n")
        wheels = parts.wheelhouse(lock)
    image = Image(base=source.image.base, python="3.11", requirements=lock.name, wheels=str(wheels))
    return Source("other", image, folder)


def _locked(requirement: str) -> list[str]:
    """A requirement with the hash of the wheel that pip takes for it."""
    folder = parts.CACHE / requirement
    if not folder.exists():
        python = parts.python_of_the_base()
        command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, requirement, "-d", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "hash", str(wheel)], check=True, capture_output=True, text=True
    )
    return [f"{requirement} \\", f"    {done.stdout.split()[-1]}"]


@pytest.fixture(scope="session")
def other_image(client: DockerClient, other_source: Source) -> Prepared:
    """That image, built."""
    return prepare(client, other_source, lambda line: None)
