"""A small corpus of files, written in an order that no listing keeps and read back in the canonical one.

How a directory is listed is nobody's promise: by creation, by its reverse or by the hash of a name, as the file
system likes. The canonical order is that of the bytes of the paths, relative and with slashes: no locale and no
case folding takes part in it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

from reprokit.probe import exact
from reprokit.probe.lfq import scratch

# in canonical order, in which none is the neighbour of what people take for the next: digits as text, capitals
# before small letters, a dash before a slash, and what is not ASCII at the end
NAMES = (
    "1.txt",
    "10.txt",
    "2.txt",
    "Zebra.txt",
    "_hidden.txt",
    "alpha.txt",
    "part-1.txt",
    "part/Two.txt",
    "part/empty.txt",
    "part/one.txt",
    "part2.txt",
    "été.txt",
)
EMPTY = "part/empty.txt"


def read() -> list[tuple[bytes, bytes]]:
    """Name and content of every file of the corpus, in the order in which they are read."""
    with scratch.folder() as folder:
        for index in exact.permutation(len(NAMES), "data.files.order").tolist():
            path = folder / _native(NAMES[index])
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(_content(NAMES[index]))
        return [(_name(path, folder), path.read_bytes()) for path in in_order(listed(folder), folder)]


def listed(folder: Path) -> list[Path]:
    """The files below a folder as the file system lists them."""
    return [path for path in folder.rglob("*") if path.is_file()]


def in_order(paths: list[Path], folder: Path) -> list[Path]:
    """Paths below `folder` in the canonical order."""
    return sorted(paths, key=lambda path: _name(path, folder))


def digests(files: list[tuple[bytes, bytes]]) -> torch.Tensor:
    """uint8 (files, 32): the SHA-256 of each file's name and content."""
    found = [hashlib.sha256(name + b"\0" + content).digest() for name, content in files]
    return torch.tensor([list(digest) for digest in found], dtype=torch.uint8)


def tokens(files: list[tuple[bytes, bytes]]) -> torch.Tensor:
    """int64 (bytes,): the contents byte by byte, one file behind the other."""
    return torch.tensor(list(b"".join(content for _, content in files)))


def _content(name: str) -> bytes:
    """0 to 64 bytes of all values."""
    size = 0 if name == EMPTY else 1 + int(exact.below(64, (1,), f"data.files.size.{name}"))
    return bytes(exact.below(256, (size,), f"data.files.{name}").tolist())


def _native(name: str) -> str:
    return os.fsdecode(name.encode())  # the same bytes on disk whatever the locale


def _name(path: Path, folder: Path) -> bytes:
    return os.fsencode(path.relative_to(folder).as_posix())
