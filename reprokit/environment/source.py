"""The repository that the process runs in, and the code that measures."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reprokit import __version__
from reprokit.environment.absence import Absences, Unavailable

_TIMEOUT_SECONDS = 10
_MEASURING = ("probe", "environment")
_SEEDING = "seeding.py"
# One call tells the commit and the changes. No lock is taken and no hook of the repository is run.
_STATUS = [
    "git", "-c", "core.fsmonitor=false", "--no-optional-locks",
    "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no",
]  # fmt: skip
_REFUSALS = (
    ("not a git repository", "the working directory is in no git repository"),
    ("dubious ownership", "git refuses a repository of another owner: add it to safe.directory"),
    ("unknown option", "this git is too old: it needs 2.17 or later"),
)


def collect(absences: Absences, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The section `source`; `told` holds `commit` and `dirty` of a repository that this process cannot see."""
    if told is None:
        commit, dirty = state(absences)
    else:
        commit, dirty = told["commit"], told["dirty"]
        for field, value in (("source.commit", commit), ("source.dirty", dirty)):
            if value is None:
                absences.unavailable(field, "whoever started the probe could not read it either")
    return {
        "commit": commit,
        "dirty": dirty,
        "reprokit": __version__,
        "probe_sha256": absences.read("source.probe_sha256", measuring_code),
    }


def measuring_code() -> str:
    """`sha256:…` over names and contents of the files of the probe, of its collectors and of what seeds it."""
    package = Path(__file__).resolve().parent.parent
    files = [package / _SEEDING]
    files += [
        file for part in _MEASURING for file in (package / part).rglob("*") if file.suffix in (".py", ".gz")
    ]
    total = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.relative_to(package).as_posix()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{content} {file.relative_to(package).as_posix()}\n".encode())
    return "sha256:" + total.hexdigest()


def state(absences: Absences) -> tuple[str | None, bool | None]:
    """Commit of the repository around the working folder, and whether tracked files differ from it."""
    try:
        lines = _git_status().splitlines()
    except Unavailable as error:
        absences.unavailable("source.commit", str(error))
        absences.unavailable("source.dirty", str(error))
        return None, None
    head = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    dirty = any(not line.startswith("#") for line in lines)
    if head == "(initial)":
        absences.unavailable("source.commit", "the repository has no commit yet")
        return None, dirty
    return head, dirty


def _git_status() -> str:
    try:
        done = subprocess.run(
            _STATUS,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise Unavailable("git is not installed") from None
    except PermissionError:
        raise Unavailable("git may not be executed") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"git took longer than {_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace")
        known = (reason for words, reason in _REFUSALS if words in said)
        raise Unavailable(next(known, f"git status failed with exit code {done.returncode}"))
    return done.stdout.decode("utf-8", "replace")
