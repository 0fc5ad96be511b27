"""The shared libraries that are really loaded, from the process's own memory map.

Read after operators have run: many libraries are loaded by the first operator that needs them.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

from reprokit.environment import elf
from reprokit.environment.absence import Absences, Unavailable, reason_of
from reprokit.environment.packages import NUMERIC

# Compression, cryptography, terminals and name services never touch a number.
_NOT_NUMERIC = re.compile(
    r"^lib(?:ssl|crypto|z|lzma|bz2|zstd|lz4|ffi|sqlite3|readline|history|tinfo|ncursesw?|panelw?|expat|uuid|nss_\w+"
    r"|resolv|util|crypt|nsl|anl|yaml\w*|curl|gssapi_krb5|krb5\w*|k5crypto|com_err|keyutils|idn2|unistring|systemd"
    r"|cap|selinux|pcre\w*)(?:-[\d.]+)?\.so"
)
_EXTENSION_TAG = re.compile(r"\.(?:cpython-\d+\w*|abi3|pypy\d+)(?:-[\w\-]+)?(?=\.so$)")
# Tools that repair wheels add a hash to a library's name, some of them twice.
_WHEEL_HASH = re.compile(r"(?:-[0-9a-f]{8})+(?=\.so)")
# One number alone is no version but the soname's: `libc.so.6`.
_VERSION = re.compile(r"\.so\.(?P<after>\d+(?:\.\d+)+)$|-(?P<before>\d+(?:\.\d+)+)\.so")
_MINOR_VERSION = re.compile(r"(?<=\.so\.)(\d+)\.[\d.]+$")
_NUMERIC_MODULES = frozenset(name.replace("-", "_") for name in NUMERIC) | {
    "sklearn", "cv2", "PIL", "flash_attn", "flash_attn_2_cuda", "flash_attn_3", "flashinfer",
}  # fmt: skip
_CHUNK = 1 << 20


def collect(absences: Absences, detail: str) -> dict[str, dict[str, Any]]:
    """The section `libraries`: by name; a second library of the same name is keyed `folder/name`."""
    paths = absences.read("libraries", mapped)
    folders = package_folders()
    found = []
    for path in paths or []:
        relative = relative_path(path, folders)
        if _is_numeric(relative):
            found.append((*_described(path, relative), path))
    libraries: dict[str, dict[str, Any]] = {}
    # torch's own copy of a library is the one that its operators use, so it keeps the plain name.
    found.sort(key=lambda item: (not item[1]["path"].startswith("torch/"), item[1]["path"], item[3]))
    for name, library, failure, path in found:
        key = _free_key(name, library["path"], libraries)
        libraries[key] = {**library, "path": path} if detail == "full" else library
        if failure:
            absences.unavailable(f'libraries["{key}"].build_id', failure)
    return dict(sorted(libraries.items()))


def mapped() -> list[str]:
    """Absolute paths of the shared objects in this process, each once, in the order of first mapping.

    Raises:
        Unavailable: this system has no memory map to read.
    """
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        raise Unavailable("this system has no /proc/self/maps") from None
    paths: dict[str, None] = {}
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/") and ".so" in os.path.basename(fields[5]):  # noqa: PTH119
            paths[fields[5].removesuffix(" (deleted)")] = None
    return list(paths)


def loaded(prefix: str) -> str | None:
    """Absolute path of the first loaded library whose file name starts with `prefix`, if there is one."""
    return next((path for path in mapped() if os.path.basename(path).startswith(prefix)), None)  # noqa: PTH119


def normalised_name(file_name: str) -> str:
    """A name without what a wheel or an interpreter added: `libgomp-a34b3233.so.1.0.0` is `libgomp.so.1`."""
    name, repaired = _WHEEL_HASH.subn("", file_name)
    if repaired:  # the wheel's soname is the file's name, minor version included
        name = _MINOR_VERSION.sub(r"\1", name)
    return _EXTENSION_TAG.sub("", name)


def relative_path(path: str, folders: list[str] | None = None) -> str:
    """`path` relative to the folder of packages it lies in; only the file's name when it lies in none."""
    for folder in package_folders() if folders is None else folders:
        if path.startswith(folder + os.sep):
            relative = path[len(folder) + 1 :]
            top = relative.partition(os.sep)[0]
            inside = folder.endswith(("site-packages", "dist-packages")) or top.endswith(".libs")
            if inside or os.path.exists(os.path.join(folder, top, "__init__.py")):  # noqa: PTH110, PTH118
                return relative
    return os.path.basename(path)  # noqa: PTH119 - a string from the kernel, thousands of times


def package_folders() -> list[str]:
    """Folders of sys.path without links, as the memory map shows them; longest first."""
    folders = {os.path.realpath(folder or ".") for folder in sys.path}
    return sorted(folders - {"/"}, key=lambda folder: (-len(folder), folder))


def _is_numeric(relative: str) -> bool:
    if _is_module(relative):  # only of a package that computes
        return _top_module(relative) in _NUMERIC_MODULES
    return not _NOT_NUMERIC.match(normalised_name(os.path.basename(relative)))  # noqa: PTH119


def _is_module(relative: str) -> bool:
    """Whether the file is an extension module of Python, and no library in its own right."""
    folder, name = os.path.split(relative)
    return _EXTENSION_TAG.search(name) is not None or (folder != "" and not name.startswith("lib"))


def _top_module(relative: str) -> str:
    return relative.partition("/")[0].partition(".")[0]


def _described(path: str, relative: str) -> tuple[str, dict[str, Any], str | None]:
    """Name of a library, its record, and why its build id could not be read."""
    file_name = os.path.basename(relative)  # noqa: PTH119
    record: dict[str, Any] = {
        "path": relative,
        "version": _version(file_name),
        "build_id": None,
        "sha256": None,
    }
    try:
        identity = elf.identify(path)
        record["build_id"] = identity.build_id
        if identity.build_id is None:
            record["sha256"] = _file_hash(path)
    except (OSError, struct.error) as error:
        return normalised_name(file_name), record, reason_of(error)
    name = normalised_name(identity.soname or file_name)
    if _is_module(relative):
        name = f"{_top_module(relative)}/{normalised_name(file_name)}"
    return name, record, None


def _free_key(name: str, relative: str, taken: dict[str, dict[str, Any]]) -> str:
    """`name`, or with as much of the path before it as makes it the only one."""
    folders = relative.split("/")[:-1]
    for key in (
        name,
        *(f"{'/'.join(folders[:depth])}/{name}" for depth in range(1, len(folders) + 1)),
        relative,
    ):
        if key not in taken:
            return key
    return next(key for number in range(2, len(taken) + 3) if (key := f"{relative}#{number}") not in taken)


def _version(file_name: str) -> str | None:
    match = _VERSION.search(file_name)
    return (match["after"] or match["before"]) if match else None


def _file_hash(path: str) -> str:
    total = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            total.update(chunk)
    return "sha256:" + total.hexdigest()
