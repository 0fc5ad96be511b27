"""The probe side in a container that can do nothing but measure.

No network, no capability, no new privilege, a read-only file system, limits on everything; one folder that it can
write, and no variable but the cell's.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit.engines import docker as engine
from reprokit.engines import gpus as devices
from reprokit.engines import owner, side
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
_LONGEST_LINE = 65536
_ENDING_SECONDS = 60  # what an engine may take to tell that a container has ended
_LARGEST_FILE = 256 * 1024 * 1024  # so that no image fills the disk of its runner by mistake
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
    name = f"reprokit-{name}-{secrets.token_hex(4)}"
    with side.staged() as folder, _output() as out:
        command = job.command(SIDE, f"{OUT}/{DOCUMENT}")
        options = _options(job, limits, gpus, folder, out)
        try:
            container = client.containers.create(image, command, name=name, **options)
            code = _watched(container, listener, job.timeout)
            if code:
                raise ProbeFailed(devices.explained(_failure(container, listener, code), listener.text))
        except APIError as error:
            raise _refused(error) from error
        except (DockerException, OSError) as error:
            reason = engine.reason_of(error)
            raise ProbeFailed(f"the container engine failed in the middle of the run: {reason}") from error
        finally:
            # by name, because an interrupt may come before the engine has told that it made it
            if problem := engine.remove(client, name):
                say(f"the container {name} stays until the next run removes it: {problem}")
        return _document(out / DOCUMENT)


def _options(job: Job, limits: Limits, gpus: Sequence[str], side_folder: Path, out: Path) -> dict[str, Any]:
    """How the container is made."""
    from docker.types import LogConfig, Mount, Ulimit

    uid, gid = user()
    return {
        "environment": job.variables,
        "use_config_proxy": False,  # which would be further variables, with a password perhaps
        # unlike a volume, a mount is refused where the engine does not see the folder
        "mounts": [
            Mount(SIDE, str(side_folder), type="bind", read_only=True),
            Mount(OUT, str(out), type="bind"),
        ],
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
        "ulimits": [Ulimit(name="fsize", soft=_LARGEST_FILE, hard=_LARGEST_FILE)],
        "init": True,
        "labels": engine.labels(job.timeout),
        # what it prints goes to us and to no log of the engine
        "log_config": LogConfig(type=LogConfig.types.NONE),
        "device_requests": devices.requests(gpus) if gpus else None,
    }


def user() -> tuple[int, int]:
    """User and group of the probe: the caller's, and for root somebody without rights."""
    return (os.getuid(), os.getgid()) if os.getuid() else (NOBODY, NOBODY)


@contextmanager
def _output() -> Iterator[Path]:
    """A folder that the container's user can write, whatever user of this machine an engine makes of it.

    Nobody else reaches it: its parent cannot be listed, and its name cannot be guessed.
    """
    with owner.temporary() as parent:
        parent.chmod(0o711)
        folder = parent / secrets.token_hex(16)
        folder.mkdir()
        folder.chmod(0o777)
        yield folder


def _watched(container: Container, listener: Listener, timeout: float) -> int:
    """Start the container, hear what it prints until it ends, and return its exit code.

    Raises:
        ProbeFailed: it took longer than `timeout` seconds.
    """
    expired = threading.Event()

    def expire() -> None:
        from docker.errors import DockerException

        expired.set()
        with suppress(DockerException, OSError):  # it has just ended, or the engine has
            container.kill()

    stream = container.attach(stdout=True, stderr=True, stream=True, logs=False)
    timer = threading.Timer(timeout, expire)
    timer.daemon = True
    try:
        container.start()
        timer.start()  # what has not started cannot be killed
        for line in _lines(stream):
            listener.hear(line)
        code = int(container.wait(timeout=timeout + _ENDING_SECONDS)["StatusCode"])
    finally:
        timer.cancel()
        # its own close() leaves the socket to the garbage collector
        stream._response.close()  # type: ignore[attr-defined]
    if expired.is_set():
        raise ProbeFailed(f"the probe took longer than {timeout:g} s, the cell's timeout, and was ended")
    return code


def _lines(stream: Iterator[bytes]) -> Iterator[str]:
    """The lines of a stream that comes in pieces; one that does not end is cut."""
    rest = b""
    for piece in stream:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
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
    if "bind source path does not exist" in message:
        message = f"the engine sees none of this machine's files: measure with `engine: local` ({message})"
    return ProbeFailed(f"the container could not be started: {devices.explained(message)}")


def _document(path: Path) -> bytes:
    """What the probe wrote: a regular file, and no link that leads out of its folder."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            return stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ProbeFailed(f"the probe left no document: {error.strerror}") from error
