"""Images by digest from a registry, or from its mirror."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reprokit.errors import InvalidInput, ProbeFailed, ReprokitError, ServiceFailed

if TYPE_CHECKING:
    from docker import DockerClient

MIRROR = "REPROKIT_REGISTRY_MIRROR"
_MIRROR = re.compile(r"[A-Za-z0-9.\-]+(?::\d+)?(?:/[a-z0-9._\-]+)*")


def pulled(client: DockerClient, reference: str, say: Callable[[str], None]) -> str:
    """A name by digest of the image `name:tag@sha256:…`, which is there; it is pulled only where it was not.

    Raises:
        InvalidInput: the mirror's name is wrong.
        ProbeFailed: the engine failed.
        ServiceFailed: no registry answers, it refuses, or it does not know the digest.
    """
    from docker.errors import APIError, DockerException, ImageNotFound

    name = by_digest(reference)
    names = [name] if (mirrored := through_mirror(name)) == name else [mirrored, name]
    for known in names:
        try:
            client.images.get(known)
            return known
        except ImageNotFound:
            continue
    wanted = names[0]
    repository, _, digest = wanted.partition("@")
    say(f"image: pulling {wanted}")
    refusal = None
    try:
        for event in client.api.pull(repository, tag=digest, stream=True, decode=True):
            refusal = event.get("error", refusal)  # to its end, which also gives the connection back
            _tell(event, say)
        if refusal is not None:
            raise _failed(wanted, refusal)
        client.images.get(wanted)
    except APIError as error:
        raise _failed(wanted, str(error.explanation or error)) from error
    except (DockerException, OSError) as error:
        raise ProbeFailed(f"{wanted} cannot be pulled: {error}") from error
    return wanted


def by_digest(reference: str) -> str:
    """`name@sha256:…` of `name:tag@sha256:…`: a tag beside a digest decides nothing."""
    name, _, digest = reference.partition("@")
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}@{digest}"


def through_mirror(name: str) -> str:
    """The same image at the mirror that REPROKIT_REGISTRY_MIRROR names; the digest is checked there as well.

    Raises:
        InvalidInput: that is no `host[:port][/prefix]`.
    """
    mirror = os.environ.get(MIRROR, "").strip().rstrip("/")
    if not mirror:
        return name
    if not _MIRROR.fullmatch(mirror):  # which is not shown: it may hold a password
        raise InvalidInput(f"{MIRROR}: expected host[:port][/prefix]; who it is for, `docker login` says")
    of_the_hub = name.removeprefix("docker.io/")
    first, slash, _ = of_the_hub.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name  # it names a registry of its own, and a mirror is one of Docker Hub
    return f"{mirror}/{of_the_hub}" if slash else f"{mirror}/library/{of_the_hub}"


def _tell(event: dict[str, Any], say: Callable[[str], None]) -> None:
    """Say what happens with each layer, but not each of its bytes."""
    if event.get("status") in ("Pull complete", "Already exists") or (
        "id" not in event and "status" in event
    ):
        say(f"image: {event.get('id', '')} {event.get('status', '')}".replace("  ", " ").rstrip())


def _failed(reference: str, reason: str) -> ReprokitError:
    reason = " ".join(reason.split())[:300]
    low = reason.lower()
    if "no space left on device" in low:
        return ProbeFailed(
            f"{reference} cannot be pulled: the engine's disk is full: `reprokit image prune` removes what reprokit "
            f"built and nobody asks for any more ({reason})"
        )
    if "no matching manifest" in low:
        advice = "the registry has it for another processor only"
    elif "manifest unknown" in low or "not found" in low:
        advice = "the registry does not know this digest: was it removed, or is it another repository's?"
    elif "toomanyrequests" in low or "rate limit" in low:
        advice = (
            f"the registry's pull limit is reached: log in with `docker login`, or name a mirror in {MIRROR}"
        )
    elif "unauthorized" in low or "denied" in low or "authentication" in low:
        advice = "log in with `docker login`, or check the name"
    else:
        advice = f"is the registry reachable from here? {MIRROR} names a mirror"
    return ServiceFailed(f"{reference} cannot be pulled: {advice} ({reason})")
