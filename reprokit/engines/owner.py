"""Whom a container or a temporary folder belongs to, so that a later run removes what a killed one left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = "reprokit-run-"
_OWNER = re.compile(r"[0-9a-f]{32}\.\d+\.(\d+)\.(\d+)")


def own() -> str:
    """This process by boot, process namespace, id and start, in letters that a file's name may have.

    Empty on a system without /proc: nothing can be told about the owner there.
    """
    return _named(os.getpid())


def ended(owner: str) -> bool:
    """Whether that process is known to have ended.

    The processes of another machine that shares an engine, or of another container, cannot be seen from here.
    """
    found = _OWNER.fullmatch(owner)
    if found is None or _place() != owner.rsplit(".", 2)[0]:
        return False
    pid = int(found[1])
    if _named(pid):
        return _named(pid) != owner
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OverflowError:  # no id of a process at all
        return False
    except PermissionError:  # another user's, which /proc hides
        return False
    return False


@contextmanager
def temporary() -> Iterator[Path]:
    """A folder for this run, removed at the end; those of killed runs are removed at the start."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{own()}-"))
    try:
        yield folder
    finally:
        _remove(folder)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).rpartition("-")[0]
        with suppress(OSError):  # another run removes it at this moment
            if ended(owner) and folder.lstat().st_uid == os.getuid():
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder with everything in it, however deep an image has made it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False)


def _named(pid: int) -> str:
    """The name of a process; empty where there is none or it cannot be seen."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    place = _place()
    return f"{place}.{pid}.{started}" if place else ""


def _place() -> str:
    """Where a process id means the same process: this boot of this machine, in this namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
