"""The probe side in a container that can do nothing but measure.

No network, no capability, no new privilege, a read-only file system, limits on everything; one folder that it can
write, and no variable but the cell's.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit.engines import docker as engine
from reprokit.engines import gpus as devices
from reprokit.engines import side
from reprokit.engines.job import Job
from reprokit.engines.listening import Listener
from reprokit.errors import ProbeFailed

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

    from reprokit.model.config import Limits

SIDE = "/reprokit"
OUT = "/out"
DOCUMENT = "fingerprint.json"
NOBODY = 65532  # the user of distroless images: who runs reprokit as root does not run the probe as root
_MOST_BYTES = 16 * 1024 * 1024  # as `reading.MAX_BYTES`
_TMPFS = "rw,nosuid,nodev,size=2g,mode=1777"


def run(
    client: DockerClient,
    job: Job,
    image: str,
    limits: Limits,
    gpus: Sequence[str],
    say: Callable[[str], None],
    name: str = "probe",
) -> bytes:
    """The document of the probe, run in `image`; `gpus` empty: none. `say` gets every line that it prints.

    Raises:
        ProbeFailed: the engine refused, or the probe failed, was out of memory or took too long.
    """
    from docker.errors import APIError, DockerException

    listener = Listener(say)
    with side.staged() as folder, _output() as out:
        options = _options(job, limits, gpus, folder, out)
        try:
            container = client.containers.create(
                image,
                job.command(SIDE, f"{OUT}/{DOCUMENT}"),
                name=f"reprokit-{name}-{secrets.token_hex(4)}",
                **options,
            )
        except APIError as error:
            raise _refused(error) from error
        try:
            code = _watched(container, listener, job.timeout)
            if code:
                raise ProbeFailed(devices.explained(_failure(container, listener, code), listener.text))
        except APIError as error:
            raise _refused(error) from error
        except (DockerException, OSError) as error:
            raise ProbeFailed(f"the container engine failed in the middle of the run: {error}") from error
        finally:
            engine.remove(container)
        return _document(out / DOCUMENT)


def _options(job: Job, limits: Limits, gpus: Sequence[str], side_folder: Path, out: Path) -> dict[str, Any]:
    """How the container is made."""
    from docker.types import LogConfig

    uid, gid = user()
    return {
        "environment": job.variables,
        "volumes": {
            str(side_folder): {"bind": SIDE, "mode": "ro"},
            str(out): {"bind": OUT, "mode": "rw"},
        },
        "working_dir": "/tmp",
        "entrypoint": [],
        "user": f"{uid}:{gid}",
        "network_mode": "none",
        "hostname": "reprokit",
        "read_only": True,
        "tmpfs": {"/tmp": _TMPFS},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": limits.pids,
        "mem_limit": limits.memory,
        "memswap_limit": limits.memory,
        "nano_cpus": None if limits.cpus is None else int(limits.cpus * 1e9),
        "shm_size": limits.shm,
        "init": True,
        "labels": engine.labels(job.timeout),
        "log_config": LogConfig(
            type=LogConfig.types.NONE
        ),  # what it prints goes to us and to no log of the engine
        "device_requests": devices.requests(gpus) if gpus else None,
    }


def user() -> tuple[int, int]:
    """User and group of the probe: the caller's, and for root somebody without rights."""
    return (os.getuid(), os.getgid()) if os.getuid() else (NOBODY, NOBODY)


@contextmanager
def _output() -> Iterator[Path]:
    """A folder that the container's user can write, removed with everything in it."""
    folder = Path(tempfile.mkdtemp(prefix="reprokit-out-"))
    try:
        if os.getuid() == 0:
            os.chown(folder, *user())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watched(container: Container, listener: Listener, timeout: float) -> int:
    """Start the container, hear what it prints until it ends, and return its exit code.

    Raises:
        ProbeFailed: it took longer than `timeout` seconds.
    """
    expired = threading.Event()

    def expire() -> None:
        from docker.errors import APIError

        expired.set()
        with suppress(APIError):  # it has just ended
            container.kill()

    stream = container.attach(stdout=True, stderr=True, stream=True, logs=False)
    timer = threading.Timer(timeout, expire)
    timer.daemon = True
    timer.start()
    try:
        container.start()
        for line in _lines(stream):
            listener.hear(line)
        code = int(container.wait()["StatusCode"])
    finally:
        timer.cancel()
    if expired.is_set():
        raise ProbeFailed(f"the probe took longer than {timeout:g} s, the cell's timeout, and was ended")
    return code


def _lines(stream: Iterator[bytes]) -> Iterator[str]:
    """The lines of a stream that comes in pieces."""
    rest = b""
    for piece in stream:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _failure(container: Container, listener: Listener, code: int) -> str:
    container.reload()
    if container.attrs["State"].get("OOMKilled"):
        return "the probe needed more memory than `limits: memory` of the cell allows, and was ended"
    return listener.failure(code)


def _refused(error: Any) -> ProbeFailed:
    """What the engine says when it cannot make or start a container."""
    message = " ".join(str(error.explanation or error).split())
    return ProbeFailed(f"the container could not be started: {devices.explained(message)}")


def _document(path: Path) -> bytes:
    """What the probe wrote: a regular file, and no link that leads out of its folder."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            return stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ProbeFailed(f"the probe left no document: {error.strerror}") from error
