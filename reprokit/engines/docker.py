"""The container engine of this machine, and what killed runs have left in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprokit import __version__
from reprokit.errors import ProbeFailed

if TYPE_CHECKING:
    from docker import DockerClient

RUN = "io.reprokit.run"  # label of every container that a run starts
OWNER = "io.reprokit.owner"
DEADLINE = "io.reprokit.deadline"
_OPEN_SECONDS = 60
_GRACE_SECONDS = 600


@contextmanager
def connected() -> Iterator[DockerClient]:
    """The engine that DOCKER_HOST names, else the one of this machine.

    Raises:
        ProbeFailed: none answers, or this user may not ask it.
    """
    import docker
    from docker.errors import DockerException

    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    client = None
    try:
        client = docker.from_env(timeout=_OPEN_SECONDS)
        client.ping()
    except (DockerException, OSError, ValueError) as error:
        reason = _reason(error)
        if "Permission denied" in reason or "PermissionError" in reason:
            advice = "add the user of the runner to the group docker"
        else:
            advice = "start it, or name another one in DOCKER_HOST"
        if client is not None:
            client.close()
        raise ProbeFailed(
            f"no container engine at {host}: {reason}: {advice}; or measure without one, with `engine: local`"
        ) from error
    try:
        yield client
    finally:
        client.close()


def _reason(error: BaseException) -> str:
    """The innermost reason, which is the one of the operating system."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return " ".join(str(error).split())[:300]


def labels(timeout: float) -> dict[str, str]:
    """What tells a later run whom a container belongs to, and when nobody can be waiting for it any more."""
    pid = os.getpid()
    deadline = int(time.time() + timeout + _GRACE_SECONDS)
    return {RUN: __version__, OWNER: f"{_place()} {pid} {_started(pid)}", DEADLINE: str(deadline)}


def sweep(client: DockerClient) -> list[str]:
    """Remove the containers of runs that were killed; their names."""
    removed = []
    for container in client.containers.list(all=True, filters={"label": RUN}):
        if _abandoned(container.labels):
            removed.append(str(container.name))
            remove(container)
    return removed


def remove(container: Any) -> None:
    """Kill and remove a container; one that is gone already is no fault."""
    from docker.errors import APIError, NotFound

    try:
        container.remove(force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != 409:  # its removal is in progress
            raise


def _abandoned(labels: dict[str, str]) -> bool:
    """Whether nobody waits for a container: its owner has ended, or its time is over."""
    deadline = labels.get(DEADLINE, "")
    if not deadline.isdigit() or time.time() > int(deadline):
        return True
    # the processes of another machine that shares the engine, or of another container, cannot be seen from here
    place, _, process = labels.get(OWNER, "").partition(" ")
    pid, _, started = process.partition(" ")
    return place != "" and place == _place() and pid.isdigit() and _started(int(pid)) != started


def _place() -> str:
    """Where a process id means the same process: this boot of this machine, in this namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # another system, where the deadline alone decides
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks of the kernel's clock; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
