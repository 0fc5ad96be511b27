"""The container engine of this machine, and what killed runs have left in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reprokit import __version__
from reprokit.engines import owner
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
    """The engine that DOCKER_HOST names, else the one of Docker's current context.

    Raises:
        ProbeFailed: none answers, or this user may not ask it.
    """
    import docker
    from docker.errors import DockerException

    host = os.environ.get("DOCKER_HOST") or _context_host()
    client = None
    try:
        client = docker.from_env(timeout=_OPEN_SECONDS, environment={**os.environ, "DOCKER_HOST": host})
        client.ping()
    except (DockerException, OSError, ValueError) as error:
        reason = reason_of(error)
        if "Permission denied" in reason:
            advice = "add the user of the runner to the group docker"
        else:
            advice = "start it, or name another one in DOCKER_HOST"
        if client is not None:
            client.close()
        raise ProbeFailed(
            f"no container engine at {host}: {reason}: {advice}; or measure without one, with `engine: local` and no "
            "`image`"
        ) from error
    try:
        yield client
    finally:
        client.close()


def _context_host() -> str:
    """The engine of the context that the docker command would choose; the machine's where there is none."""
    from docker.context import ContextAPI

    try:
        context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT"))
    except Exception:  # whatever is wrong with a file of the docker command
        context = None
    return str(context.Host) if context and context.Host else "unix:///var/run/docker.sock"


def reason_of(error: BaseException) -> str:
    """The innermost reason, which is the one of the operating system."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return " ".join(str(error).split())[:300]


def labels(timeout: float) -> dict[str, str]:
    """What tells a later run whom a container belongs to, and when nobody can be waiting for it any more."""
    deadline = int(time.time() + timeout + _GRACE_SECONDS)
    return {RUN: __version__, OWNER: owner.own(), DEADLINE: str(deadline)}


def sweep(client: DockerClient) -> list[str]:
    """Remove the containers of runs that were killed; their names.

    Raises:
        ProbeFailed: the engine does not say which there are.
    """
    from docker.errors import DockerException

    try:
        found = client.containers.list(all=True, filters={"label": RUN}, ignore_removed=True)
        names = [str(container.name) for container in found if abandoned(container.labels)]
    except (DockerException, OSError) as error:
        raise ProbeFailed(f"the container engine does not list its containers: {reason_of(error)}") from error
    return [name for name in names if remove(client, name) is None]


def remove(client: DockerClient, container: str) -> str | None:
    """Kill and remove a container; None, or why that failed. One that is gone already is no fault."""
    from docker.errors import APIError, DockerException, NotFound

    try:
        client.api.remove_container(container, force=True, v=True)
    except NotFound:
        return None
    except APIError as error:
        return None if error.status_code == 409 else reason_of(error)  # 409: its removal is in progress
    except (DockerException, OSError) as error:
        return reason_of(error)
    return None


def abandoned(labels: Mapping[str, str]) -> bool:
    """Whether nobody waits for a container: its owner has ended, or its time is over."""
    deadline = labels.get(DEADLINE, "")
    late = not deadline.isdecimal() or time.time() > int(deadline)
    return late or owner.ended(labels.get(OWNER, ""))
