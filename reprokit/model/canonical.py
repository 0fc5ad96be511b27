"""Canonical JSON: the one way in which a document becomes bytes, and those bytes a digest.

Both sides use this module, so it needs the standard library alone. Rules: keys sorted, no white space, ASCII
only, floats in their shortest form that reads back to the same bits, and NaN or infinity as the tagged
strings `float:nan`, `float:inf` and `float:-inf`, because JSON has no tokens for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

NOT_IN_DIGEST = ("digest", "run")


def tagged(value: Any) -> Any:
    """`value` with every non-finite float in it replaced by its tagged string."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float:{value}"
    if isinstance(value, dict):
        return {key: tagged(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tagged(item) for item in value]
    return value


def number(value: float | str) -> float:
    """The float that a number of a document stands for, tagged strings included."""
    return float(value.removeprefix("float:")) if isinstance(value, str) else value


def encode(value: Any) -> bytes:
    """The canonical bytes of plain data (dict, list, str, int, float, bool, None)."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(tagged(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def digest(document: dict[str, Any]) -> str:
    """`sha256:…` over a document without its own `digest` and without `run`, which may differ between equal runs."""
    content = {key: value for key, value in document.items() if key not in NOT_IN_DIGEST}
    return "sha256:" + hashlib.sha256(encode(content)).hexdigest()


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with the digest of its content."""
    return {**document, "digest": digest(document)}


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` so that `path` holds all of it or what stood there before, also when the process is killed.

    A path that exists and is no regular file (`/dev/stdout`, a pipe) is written to directly.

    Raises:
        OSError: the folder is missing, read-only or full; nothing is left behind.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    target = Path(os.path.realpath(target))  # a symbolic link stays one: its target is replaced
    # process ids repeat from container to container, so they are no name for a file in a shared folder
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(6).hex()}.tmp")
    stream = temporary.open("xb")
    try:
        with stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the platform lets a folder be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
