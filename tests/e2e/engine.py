"""A container engine, a registry and images for the tests: those of this machine, or Debian's, started for them.

What takes long (a base image, wheels) is kept in build/e2e of the checkout.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "e2e"
BASE = "debian-python:bookworm"
PACKAGES = "python3,python3-venv"
_PORT = 5057
_SECONDS = 60  # only a test that fails waits as long


class Missing(Exception):
    """What these tests need and this machine has not; the message says what."""


def answers(host: str) -> bool:
    """Whether an engine answers there."""
    done = subprocess.run(["docker", "version"], env={**os.environ, "DOCKER_HOST": host}, capture_output=True)
    return done.returncode == 0


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """DOCKER_HOST of an engine: the one that is there, else one of our own, whose data lie in the cache.

    Raises:
        Missing: there is none, and none can be started.
    """
    if shutil.which("docker") is None:
        raise Missing("no docker command")
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if answers(host):
        yield host
        return
    if shutil.which("dockerd") is None or os.getuid() != 0:
        raise Missing(f"no engine answers at {host}, and none can be started: it takes root and dockerd")
    socket_file = folder / "docker.sock"
    command = [
        "dockerd", "--host", f"unix://{socket_file}", "--data-root", str(CACHE / "docker"),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "docker.pid"),
        "--iptables=false", "--bridge=none",
    ]  # fmt: skip
    CACHE.mkdir(parents=True, exist_ok=True)
    with running(command, folder / "dockerd.log", lambda: answers(f"unix://{socket_file}")):
        yield f"unix://{socket_file}"


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """`127.0.0.1:PORT` of a registry whose data lie in the cache; the port is the same where it is free.

    Raises:
        Missing: there is no docker-registry.
    """
    if shutil.which("docker-registry") is None:
        raise Missing("no docker-registry")
    with socket.socket() as free:
        try:
            free.bind(("127.0.0.1", _PORT))
        except OSError:
            free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(CACHE / "registry")}},
        "http": {"addr": address},
    }
    (folder / "registry.yml").write_text(json.dumps(config))

    def up() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    with running(["docker-registry", "serve", str(folder / "registry.yml")], folder / "registry.log", up):
        yield address


@contextmanager
def running(command: list[str], log: Path, up: object) -> Iterator[None]:
    """A service while it is needed; it is up when `up()` says so."""
    assert callable(up)
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as service:
        try:
            deadline = time.monotonic() + _SECONDS
            while not up():
                said = log.read_text(errors="replace")[-500:]
                assert service.poll() is None, f"{command[0]} ended: {said}"
                assert time.monotonic() < deadline, f"{command[0]} does not answer: {said}"
                with suppress(subprocess.TimeoutExpired):
                    service.wait(0.1)
            yield
        finally:
            service.terminate()
            service.wait(_SECONDS)


def base_image(host: str, address: str) -> str:
    """Debian with Python, pushed to the registry and removed from the engine: a reference by its digest.

    Raises:
        Missing: it is not in the cache and cannot be made.
    """
    name, known = f"{address}/{BASE}", CACHE / "base-digest"
    if known.exists() and _has(address, digest := known.read_text()):
        return f"{name}@{digest}"
    docker(host, "import", str(_debian()), name)
    docker(host, "push", "--quiet", name)
    (reference,) = json.loads(docker(host, "image", "inspect", "--format", "{{json .RepoDigests}}", name))
    digest = reference.partition("@")[2]
    docker(host, "rmi", name)
    known.write_text(digest)
    return f"{name}@{digest}"


def _has(address: str, digest: str) -> bool:
    """Whether the registry still has the base image."""
    url = f"http://{address}/v2/{BASE.partition(':')[0]}/manifests/{digest}"
    accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
    with suppress(OSError), urllib.request.urlopen(urllib.request.Request(url, headers=accept), timeout=5):
        return True
    return False


def _debian() -> Path:
    archive = CACHE / "debian-python.tar"
    if not archive.exists():
        if shutil.which("debootstrap") is None or os.getuid() != 0:
            raise Missing("a base image cannot be made: it takes root and debootstrap")
        tree, partial = CACHE / "debian-python", archive.with_suffix(".partial")
        shutil.rmtree(tree, ignore_errors=True)
        tree.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(tree)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["tar", "-C", str(tree), "-cf", str(partial), "."], check=True)
        shutil.rmtree(tree)
        partial.rename(archive)
    return archive


def python_of_the_base() -> str:
    """An interpreter of this machine of the same minor version as the base's, for which wheels can be fetched.

    Raises:
        Missing: there is none.
    """
    for name in (sys.executable, "python3.11", "/usr/bin/python3"):
        if found := shutil.which(name):
            program = "import sys; sys.exit(sys.version_info[:2] != (3, 11))"
            if subprocess.run([found, "-c", program], stderr=subprocess.DEVNULL).returncode == 0:
                return found
    raise Missing("no Python 3.11, which the base image has")


def wheelhouse(requirements: Path) -> Path:
    """A folder with the wheels of a lock, whose hashes pip has checked.

    Raises:
        Missing: no Python of the base's version.
    """
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder, partial = CACHE / f"wheels-{key}", CACHE / f"wheels-{key}.partial"
    if not folder.exists():
        shutil.rmtree(partial, ignore_errors=True)
        command = [
            python_of_the_base(), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary", ":all:", "--require-hashes", "-r", str(requirements), "-d", str(partial),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        partial.rename(folder)
    return folder


def docker(host: str, *arguments: str) -> str:
    """Standard output of the docker command."""
    done = subprocess.run(
        ["docker", *arguments], env={**os.environ, "DOCKER_HOST": host}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
