"""The two facts of an ELF file that name a library, its build id and its soname, read without any tool."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

_MAGIC = b"\x7fELF"
_LOAD, _DYNAMIC, _NOTE = 1, 2, 4
_GNU_BUILD_ID = 3
_END_TAG, _STRTAB_TAG, _SONAME_TAG = 0, 5, 14
_LONGEST_PART = 1 << 20


class Identity(NamedTuple):
    """What a library says of itself; null where the file does not carry it."""

    build_id: str | None
    soname: str | None


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def identify(path: str) -> Identity:
    """Build id (hexadecimal) and soname of the file at `path`; both null when it is no ELF file.

    Raises:
        OSError: the file cannot be read.
        struct.error: it is cut short.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = os.pread(descriptor, 64, 0)
        if header[:4] != _MAGIC:
            return Identity(None, None)
        wide, order = header[4] == 2, "<" if header[5] == 1 else ">"  # ELFCLASS64
        segments = _segments(descriptor, header, wide, order)
        return Identity(_build_id(descriptor, segments, order), _soname(descriptor, segments, wide, order))
    finally:
        os.close(descriptor)


def _segments(descriptor: int, header: bytes, wide: bool, order: str) -> list[_Segment]:
    offset = struct.unpack_from(order + ("Q" if wide else "I"), header, 32 if wide else 28)[0]
    size, count = struct.unpack_from(order + "HH", header, 54 if wide else 42)
    table = os.pread(descriptor, size * count, offset)
    segments = []
    for start in range(0, size * count, size):
        if wide:
            kind, _, begin, address, _, length = struct.unpack_from(order + "IIQQQQ", table, start)
        else:
            kind, begin, address, _, length = struct.unpack_from(order + "IIIII", table, start)
        segments.append(_Segment(kind, begin, address, length))
    return segments


def _build_id(descriptor: int, segments: list[_Segment], order: str) -> str | None:
    for segment in segments:
        if segment.kind != _NOTE:
            continue
        notes = os.pread(descriptor, min(segment.size, _LONGEST_PART), segment.offset)
        at = 0
        while at + 12 <= len(notes):
            name_size, size, kind = struct.unpack_from(order + "III", notes, at)
            name_at, content_at = at + 12, at + 12 + _aligned(name_size)
            if kind == _GNU_BUILD_ID and notes[name_at : name_at + name_size] == b"GNU\0":
                return notes[content_at : content_at + size].hex() or None
            at = content_at + _aligned(size)
    return None


def _soname(descriptor: int, segments: list[_Segment], wide: bool, order: str) -> str | None:
    dynamic = next((segment for segment in segments if segment.kind == _DYNAMIC), None)
    if dynamic is None:
        return None
    entry = struct.Struct(order + ("qQ" if wide else "iI"))
    table = os.pread(descriptor, min(dynamic.size, _LONGEST_PART), dynamic.offset)
    tags: dict[int, int] = {}
    for tag, value in entry.iter_unpack(table[: len(table) // entry.size * entry.size]):
        if tag == _END_TAG:
            break
        tags.setdefault(tag, value)
    if _SONAME_TAG not in tags or _STRTAB_TAG not in tags:
        return None
    address = tags[_STRTAB_TAG] + tags[_SONAME_TAG]
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            text = os.pread(descriptor, 256, segment.offset + address - segment.address)
            return text.partition(b"\0")[0].decode("utf-8", "replace") or None
    return None


def _aligned(size: int) -> int:
    return (size + 3) & ~3
