"""The repository around the working directory."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from reprokit.environment import source
from reprokit.environment.absence import Absences


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def collect() -> tuple[dict[str, Any], dict[str, str]]:
    absences = Absences()
    section = source.collect(absences)
    return section, {entry["field"]: entry["reason"] for entry in absences.entries()}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commit_and_changes_of_tracked_files(repository: Path) -> None:
    section, reasons = collect()
    assert (section["commit"], section["dirty"]) == (None, False)
    assert reasons == {"source.commit": "the repository has no commit yet"}

    (repository / "model.py").write_text("x = 1\n")
    git(repository, "add", "model.py")
    git(repository, "commit", "-qm", "first")
    (repository / "untracked.py").write_text("y = 1\n")
    section, reasons = collect()
    assert (section["commit"], section["dirty"]) == (git(repository, "rev-parse", "HEAD"), False)
    assert reasons == {}

    (repository / "model.py").write_text("x = 2\n")
    assert collect()[0]["dirty"] is True


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    section, reasons = collect()
    assert (section["commit"], section["dirty"]) == (None, None)
    assert set(reasons.values()) == {"the working directory is in no git repository"}


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect()[1]["source.commit"] == "git is not installed"


def test_a_hook_of_the_repository_is_not_run(repository: Path) -> None:
    hook = repository / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {repository}/ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    collect()
    assert not (repository / "ran").exists()


def test_the_measuring_code_has_one_hash() -> None:
    assert source.measuring_code() == source.measuring_code()


def test_a_process_that_sees_no_repository_is_told(repository: Path) -> None:
    absences = Absences()
    section = source.collect(absences, {"commit": "c" * 40, "dirty": True, "image": None})
    assert (section["commit"], section["dirty"]) == ("c" * 40, True)
    assert absences.entries() == []

    section = source.collect(absences, {"commit": None, "dirty": None, "image": None})
    assert (section["commit"], section["dirty"]) == (None, None)
    assert [(entry["field"], entry["reason"]) for entry in absences.entries()] == [
        ("source.commit", "whoever started the probe could not read it either"),
        ("source.dirty", "whoever started the probe could not read it either"),
    ]
