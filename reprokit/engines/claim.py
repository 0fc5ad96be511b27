"""Whether this process runs in a container of the image that the configuration claims."""

from __future__ import annotations

import re
from pathlib import Path

from reprokit.environment.system import container as runtime
from reprokit.errors import ProbeFailed

# the engine mounts files of its own into each container, from a folder named after the container's id
_ID = re.compile(r"/([0-9a-f]{64})/\S* /etc/(?:hostname|hosts|resolv\.conf) |/docker[/-]([0-9a-f]{64})\b")


def check(digest: str) -> bool:
    """Whether the engine confirms that this container's image has that manifest digest; False: none can be asked.

    GitHub's runner mounts the engine's socket into a job's container.

    Raises:
        ProbeFailed: this is another image, or no container at all.
    """
    if runtime() == "none":
        raise ProbeFailed(
            f"the cell is to run in the container of {digest}, and this process runs in none: give the job a "
            "`container:`, or let the cell start its own with `engine: docker`"
        )
    own = own_id()
    if own is None:
        return False
    found = _digests(own)
    if found is None:
        return False
    if digest not in found:
        raise ProbeFailed(
            f"the cell claims an image of {digest}, this container's has {', '.join(found) or 'no digest'}: let the "
            "job's `container:` name the image of the cell"
        )
    return True


def own_id(root: Path = Path("/proc/self")) -> str | None:
    """Id of the container around this process, as its mounts or its control group tell it."""
    for name in ("mountinfo", "cgroup"):
        try:
            found = _ID.search((root / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if found:
            return found[1] or found[2]
    return None


def _digests(container: str) -> list[str] | None:
    """Manifest digests of the image of a container; None where no engine knows it."""
    from docker.errors import DockerException

    from reprokit.engines import docker

    try:
        with docker.connected() as client:
            image = client.images.get(client.containers.get(container).attrs["Image"])
    except (ProbeFailed, DockerException):
        return None
    references = image.attrs.get("RepoDigests") or ()  # one for each repository that it is known in
    return sorted({reference.partition("@")[2] for reference in references})
