"""The action on a real workflow runner: this repository's own workflow, and a repository that wishes it ill."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.images.prepare import Prepared
from reprokit.images.recipes import Source
from tests.e2e import act
from tests.e2e.act import Step, Workflow
from tests.e2e.conftest import needed

pytestmark = [pytest.mark.slow, pytest.mark.torch]
CELLS = ("local", "docker")
INFRASTRUCTURE = "### ! infrastructure: nothing was measured, so this is no drift"
MEASURED = "comparison.json fingerprint.json probe.log report.md"
SECRETS = {"DEPLOY_TOKEN": "ghp_planted0123456789", "ATEN_CPU_PASSWORD": "planted-hunter2"}
HERE = "reprokit/reprokit@" + "0" * 40
# every name that Python imports early, or that the action and its gate import by themselves
SHADOWS = (
    "click",
    "docker",
    "ensurepip",
    "json",
    "logging",
    "pip",
    "random",
    "reprokit",
    "secrets",
    "torch",
    "venv",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this module lie; skips where there is no runner."""
    with needed():
        act.program()
    return tmp_path_factory.mktemp("act")


@pytest.fixture(scope="module")
def self_gate(folder: Path, source: Source, probe_image: Prepared) -> Workflow:
    """self-gate.yml of this checkout, over a cell on this machine and a cell in an image that is there."""
    with needed():
        repository = act.checkout(folder / "self")
    image = {"base": source.image.base, "python": source.image.python, "requirements": "docker/cpu.lock"}
    common = {"runs-on": [act.RUNNER], "profile": "quick"}
    cells = [
        {"name": "local", "python": sys.executable, **common},
        {"name": "docker", "image": "ours", **common},
    ]
    configuration = {"version": 1, "cells": cells, "images": {"ours": image}}
    (repository / "reprokit.yml").write_text(json.dumps(configuration))
    act.commit(repository)
    return act.run(repository, "self-gate.yml", folder / "self-runner")


def gated(step: Step, result: str, verdict: str, level: str) -> None:
    """What every gate must leave: its result, and outputs that agree with it."""
    assert step.result == result, step.log
    assert (step.outputs["verdict"], step.outputs["level"]) == (verdict, level)
    assert Path(step.outputs["report"]).name == "report.md"
    measured = verdict != "infrastructure"
    assert bool(re.fullmatch("sha256:[0-9a-f]{64}", step.outputs["logit-hash"])) == measured
    assert bool(step.outputs["fingerprint"]) == measured


def test_the_workflow_finds_everything_as_it_must(self_gate: Workflow) -> None:
    assert self_gate.code == 0, self_gate.explained()
    assert self_gate.results == {"plan": "success", "gate local": "success", "gate docker": "success"}


def test_its_cells_come_from_the_matrix(self_gate: Workflow) -> None:
    matrix = json.loads(self_gate.jobs["plan"]["cells"].outputs["matrix"])
    assert [(entry["cell"], entry["engine"]) for entry in matrix["include"]] == [
        (cell, cell) for cell in CELLS
    ]


@pytest.mark.parametrize("cell", CELLS)
def test_without_a_baseline_it_is_red_with_the_approving_command(self_gate: Workflow, cell: str) -> None:
    step = self_gate.jobs[f"gate {cell}"]["first"]
    gated(step, "failure", "no_baseline", "none")
    assert step.summary.startswith(f"## reprokit: cell `{cell}`\n")
    assert "### ? no baseline: nothing is approved for this hardware yet" in step.summary
    approving = f"reprokit baseline approve reprokit-{cell}/fingerprint.json --cell {cell} --reason WHY"
    assert f"gh run download 1 --name reprokit-{cell} --dir reprokit-{cell}\n{approving}\n" in step.summary
    assert f"uploaded reprokit-{cell}: {MEASURED}" in step.log


@pytest.mark.parametrize("cell", CELLS)
def test_an_unchanged_environment_is_green(self_gate: Workflow, cell: str) -> None:
    steps = self_gate.jobs[f"gate {cell}"]
    gated(steps["unchanged"], "success", "holds", "bit")
    assert "### ✓ holds" in steps["unchanged"].summary
    assert steps["unchanged"].outputs["logit-hash"] == steps["first"].outputs["logit-hash"]
    assert "::error" not in steps["unchanged"].log


@pytest.mark.parametrize("cell", CELLS)
def test_another_instruction_set_is_red_with_field_and_first_stage(self_gate: Workflow, cell: str) -> None:
    step = self_gate.jobs[f"gate {cell}"]["changed"]
    gated(step, "failure", "drifted", "process")
    assert re.search(
        r"^\| `variables\.ATEN_CPU_CAPABILITY` \| `unset` → `\w+` \|", step.summary, re.MULTILINE
    )
    assert re.search(
        r"^\*\*Stages that differ\*\*, first `layer0\.attention\S*`$", step.summary, re.MULTILINE
    )
    assert f"uploaded reprokit-{cell}: {MEASURED}" in step.log


@pytest.mark.parametrize("cell", CELLS)
def test_a_gpu_where_there_is_none_is_infrastructure(self_gate: Workflow, cell: str) -> None:
    step = self_gate.jobs[f"gate {cell}"]["gpu"]
    gated(step, "failure", "infrastructure", "none")
    assert INFRASTRUCTURE in step.summary
    assert re.search("NVIDIA container toolkit|finds no GPU|no usable GPU", step.summary)
    assert f"uploaded reprokit-{cell}: probe.log report.md" in step.log


def test_an_engine_that_is_gone_is_infrastructure(self_gate: Workflow) -> None:
    step = self_gate.jobs["gate docker"]["gone"]
    gated(step, "failure", "infrastructure", "none")
    assert INFRASTRUCTURE in step.summary
    assert "no container engine at unix:" in step.summary


Hostile = tuple[Workflow, dict[str, dict[str, Any]], Path]
HOSTILE = f"""
on: pull_request
env: {json.dumps(SECRETS)}
jobs:
  job:
    runs-on: {act.RUNNER}
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
      - id: gate
        continue-on-error: true
        uses: {HERE}
        with: {{cell: cpu}}
      - id: python
        continue-on-error: true
        uses: {HERE}
        with: {{cell: cpu, python: /nowhere/python3}}
      - id: cell
        continue-on-error: true
        uses: {HERE}
        with: {{cell: ../../cpu, upload: "false"}}
      - id: all
        env: {{STEPS: "${{{{ toJSON(steps) }}}}"}}
        run: printf '%s' "$STEPS" > kept.json && cp kept.json KEPT
"""
PRINTED = (
    "::error title=owned::owned",
    "::set-output name=verdict::holds",
    "  ::add-mask::probe",
    "::stop-commands::never",
)


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Hostile:
    """A repository full of modules that end the process, whose interpreter prints commands: run, steps, artifacts.

    The action comes from elsewhere, as it does for every repository but its own.
    """
    with needed():
        action = act.checkout(folder / "action")
    repository = folder / "hostile"
    for name in SHADOWS:
        (repository / name).mkdir(parents=True)
        (repository / name / "__init__.py").write_text(
            f"raise SystemExit('{name} of the repository was imported')"
        )
    interpreter = repository / "interpreter"
    lines = "".join(f"echo '{line}' >&2\n" for line in PRINTED)
    interpreter.write_text(f'#!/bin/sh\n{lines}exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    cell = {"name": "cpu", "python": "./interpreter", "profile": "quick"}
    (repository / "reprokit.yml").write_text(json.dumps({"version": 1, "cells": [cell]}))
    (repository / ".github/workflows").mkdir(parents=True)
    kept = folder / "steps.json"
    (repository / ".github/workflows/gate.yml").write_text(HOSTILE.replace("KEPT", str(kept)))
    act.commit(repository)
    run = act.run(repository, "gate.yml", folder / "hostile-runner", {HERE: action})
    assert kept.exists(), run.explained()
    return run, json.loads(kept.read_text()), folder / "hostile-runner/artifacts"


def test_no_module_of_the_repository_is_imported(hostile: Hostile) -> None:
    run, steps, _ = hostile
    assert "of the repository was imported" not in run.log
    assert steps["gate"]["outputs"]["verdict"] == "no_baseline", run.explained()
    assert steps["gate"]["outcome"] == "failure"


def test_what_a_probe_prints_is_shown_and_not_obeyed(hostile: Hostile) -> None:
    run, steps, _ = hostile
    log = run.jobs["job"]["gate"].log
    for line in PRINTED:
        assert f"│ {line}" in log
    assert "❗  ::error title=owned" not in log
    assert steps["gate"]["outputs"]["verdict"] == "no_baseline"


def test_no_secret_of_the_runner_is_in_log_summary_or_artifact(hostile: Hostile) -> None:
    run, _, artifacts = hostile
    kept = {file.name: file.read_text() for file in (artifacts / "reprokit-cpu").iterdir()}
    assert sorted(kept) == MEASURED.split()
    for secret in SECRETS.values():
        assert secret not in run.log
        assert not [name for name, text in kept.items() if secret in text]


def test_an_action_that_cannot_be_installed_is_infrastructure(hostile: Hostile) -> None:
    _, steps, _ = hostile
    assert steps["python"]["outcome"] == "failure"
    found = {"verdict": "infrastructure", "level": "none", "logit-hash": "", "fingerprint": "", "report": ""}
    assert steps["python"]["outputs"] == found


def test_a_cell_that_is_a_path_is_invalid_and_uploads_nothing(hostile: Hostile) -> None:
    run, steps, artifacts = hostile
    assert (steps["cell"]["outcome"], steps["cell"]["outputs"]["verdict"]) == ("failure", "invalid")
    assert "### ! invalid: the gate could not run" in run.jobs["job"]["cell"].summary
    assert [path.name for path in artifacts.iterdir()] == ["reprokit-cpu"]
