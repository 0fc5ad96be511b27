"""`reprokit ci` as a workflow's step runs it, with the interpreter of this test as the cell's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.conftest import NUMERIC

OLDER = {"AVX512": "avx2", "AVX2": "default"}  # torch.cpu_capability: what ATEN_CPU_CAPABILITY turns it into
SECRETS = {"REGISTRY_TOKEN": "ghp_0123456789abcdefghij", "innocent": "hunter2-very-secret"}


@dataclass(frozen=True)
class Step:
    """What a step left: exit code, log, outputs, summary."""

    code: int
    stdout: str
    stderr: str
    outputs: dict[str, str]
    summary: str


class Repository:
    """A folder with a configuration, and the runner's files beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.runner = folder / "runner"
        self.runner.mkdir()

    def configure(self, *cells: dict[str, object], **keys: object) -> None:
        self.text(yaml.safe_dump({"version": 1, "cells": list(cells), **keys}))

    def text(self, configuration: str) -> None:
        (self.folder / "reprokit.yml").write_text(configuration)

    def step(self, *arguments: str | Path, cell: str = "cpu", **variables: str) -> Step:
        """`reprokit ci`, as the runner starts it."""
        files = {name: self.runner / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC)}
        environment |= {"GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(self.runner), "GITHUB_RUN_ID": "7"}
        environment |= {name: str(file) for name, file in files.items()} | SECRETS | variables
        done = subprocess.run(
            [sys.executable, "-m", "reprokit", "ci", "--cell", cell, *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        outputs, summary = (file.read_text() for file in files.values())
        return Step(done.returncode, done.stdout, done.stderr, parsed(outputs), summary)

    def approve(self, fingerprint: str, cell: str = "cpu") -> None:
        done = subprocess.run(
            [sys.executable, "-m", "reprokit", "baseline", "approve", fingerprint, "--cell", cell],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @property
    def files(self) -> dict[str, bytes]:
        """Everything that the runs left in the runner's folder and in the repository."""
        found = [
            file for folder in (self.folder, self.runner) for file in folder.rglob("*") if file.is_file()
        ]
        return {str(file): file.read_bytes() for file in found}


def parsed(text: str) -> dict[str, str]:
    """The outputs of a step as the runner reads its file: `name=value`, or lines between delimiters."""
    outputs, lines = {}, iter(text.splitlines())
    for line in lines:
        if match := re.fullmatch(r"([\w-]+)<<(.+)", line):
            value = []
            while (line := next(lines)) != match[2]:
                value.append(line)
            outputs[match[1]] = "\n".join(value)
        else:
            name, _, value_ = line.partition("=")
            outputs[name] = value_
    return outputs


def cell(**keys: object) -> dict[str, object]:
    return {"name": "cpu", "python": sys.executable, "profile": "quick", **keys}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.configure(cell())
    return made


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Step]:
    """A repository whose cell ran once, without a baseline."""
    pytest.importorskip("torch")
    made = Repository(tmp_path_factory.mktemp("measured"))
    made.configure(cell())
    return made, made.step()


@pytest.fixture
def approved(measured: tuple[Repository, Step], tmp_path: Path) -> Repository:
    """A repository whose baseline is what this machine gives."""
    step = measured[1]
    made = Repository(tmp_path)
    made.configure(cell())
    made.approve(step.outputs["fingerprint"])
    return made


@pytest.mark.torch
def test_without_a_baseline_it_fails_with_the_approving_command(measured: tuple[Repository, Step]) -> None:
    repository, step = measured
    assert step.code == 5, step.stderr
    assert step.outputs["verdict"] == "no_baseline"
    assert step.outputs["level"] == "none"
    assert step.outputs["fingerprint"] == str(repository.runner / "reprokit/cpu/fingerprint.json")
    fingerprint = json.loads(Path(step.outputs["fingerprint"]).read_text())
    assert step.outputs["logit-hash"] == fingerprint["logit_hash"]
    assert "### ? no baseline: nothing is approved for this hardware yet" in step.summary
    assert re.search(r"^reprokit baseline approve \S+ --cell cpu --reason WHY$", step.summary, re.MULTILINE)
    assert Path(step.outputs["report"]).read_text() == step.summary
    assert "::error title=reprokit%3A cpu no baseline::" in step.stdout
    assert "drift" not in step.stdout.replace("this is no drift", "")


@pytest.mark.torch
def test_the_progress_is_plain_lines_in_a_log(measured: tuple[Repository, Step]) -> None:
    repository, step = measured
    assert re.findall(r"^probe \[(\d+)/11\] ", step.stderr, re.MULTILINE) == [str(n) for n in range(1, 12)]
    assert (repository.runner / "reprokit/cpu/probe.log").read_text() == step.stderr


@pytest.mark.torch
def test_an_unchanged_environment_holds(approved: Repository) -> None:
    step = approved.step()
    assert step.code == 0, step.stderr
    assert (step.outputs["verdict"], step.outputs["level"]) == ("holds", "bit")
    assert re.fullmatch("sha256:[0-9a-f]{64}", step.outputs["logit-hash"])
    assert "### ✓ holds" in step.summary
    assert "::error" not in step.stdout
    comparison = json.loads((approved.runner / "reprokit/cpu/comparison.json").read_text())
    assert comparison["verdict"]["state"] == "holds"


@pytest.mark.torch
def test_another_instruction_set_fails_and_is_named(approved: Repository) -> None:
    fingerprint = json.loads((approved.folder / ".reprokit/baselines/cpu.json").read_text())
    capability = fingerprint["approvals"][0]["fingerprint"]["torch"]["cpu_capability"]
    if capability not in OLDER:
        pytest.skip(f"no older instruction set than {capability} to change to")
    approved.configure(cell(variables={"ATEN_CPU_CAPABILITY": OLDER[capability]}))
    step = approved.step(REPROKIT_ARTIFACT="reprokit-cpu")
    assert step.code == 1, step.stderr
    assert (step.outputs["verdict"], step.outputs["level"]) == ("drifted", "process")
    assert "| `variables.ATEN_CPU_CAPABILITY` | `unset` → `" in step.summary
    assert re.search(r"\*\*Stages that differ\*\*, first `layer0\.attention\S*`", step.summary)
    fetch = "gh run download 7 --name reprokit-cpu --dir reprokit-cpu\n"
    assert f"{fetch}reprokit ci --cell cpu --output again\n" in step.summary
    assert f"{fetch}reprokit baseline approve reprokit-cpu/fingerprint.json" in step.summary
    assert (
        "::error title=reprokit%3A cpu drifted::✗ drifted: this change may have caused it%0A" in step.stdout
    )


@pytest.mark.torch
def test_no_secret_of_the_runner_is_in_anything_that_is_left(measured: tuple[Repository, Step]) -> None:
    repository, step = measured
    left = {**repository.files, "stdout": step.stdout.encode(), "stderr": step.stderr.encode()}
    assert any(name.endswith("fingerprint.json") for name in left)
    for name, content in left.items():
        for secret in SECRETS.values():
            assert secret.encode() not in content, name
    variables = json.loads(Path(step.outputs["fingerprint"]).read_text())["run"]["other_variables"]
    other = repository.step(innocent="another-value")
    again = json.loads(Path(other.outputs["fingerprint"]).read_text())["run"]["other_variables"]
    assert again == variables, "a secret reached the probe"


@pytest.mark.torch
def test_outside_of_a_workflow_the_files_lie_where_nobody_commits_them(
    repository: Repository, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=repository.folder, check=True)
    step = repository.step(GITHUB_ACTIONS="")
    assert step.code == 5, step.stderr
    assert {file.name for file in (repository.folder / ".reprokit/runs/cpu").iterdir()} == {
        "fingerprint.json",
        "comparison.json",
        "report.md",
        "probe.log",
        ".gitignore",
    }
    status = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=repository.folder, capture_output=True, text=True
    )
    assert status.stdout == "?? reprokit.yml\n"


def failing(step: Step, code: int, verdict: str, words: str) -> None:
    """Everything that a step must say whose gate gave no verdict."""
    assert step.code == code, step.stderr
    assert step.outputs["verdict"] == verdict
    assert (step.outputs["level"], step.outputs["logit-hash"], step.outputs["fingerprint"]) == (
        "none",
        "",
        "",
    )
    assert words in step.stderr.splitlines()[-1]
    assert step.summary.startswith(f"## reprokit: cell `cpu`\n\n### ! {verdict}: ")
    assert f"::error title=reprokit%3A cpu {verdict}::" in step.stdout
    assert Path(step.outputs["report"]).read_text() == step.summary


def test_an_interpreter_that_is_not_there_is_infrastructure(repository: Repository) -> None:
    repository.configure(cell(python="/nowhere/python"))
    step = repository.step()
    failing(step, 3, "infrastructure", "/nowhere/python")
    assert "nothing was measured, so this is no drift" in step.summary


def test_an_interpreter_without_torch_is_infrastructure(repository: Repository, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    repository.configure(cell(python=str(tmp_path / "bare/bin/python")))
    failing(repository.step(), 3, "infrastructure", "torch")


def test_an_engine_that_is_gone_is_infrastructure(repository: Repository) -> None:
    repository.configure(cell(image="cpu", python=None))
    failing(
        repository.step(DOCKER_HOST="unix:///nowhere/docker.sock"),
        3,
        "infrastructure",
        "/nowhere/docker.sock",
    )


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ("version: 1\ncells:\n  - name: cpu\n    devise: cpu\n", "line 4, column 5"),
        ("version: 1\ncells:\n  - name: gpu\n", "gpu"),
        ("version: 1\ncells: [\n", "line "),
        ("", "reprokit.yml"),
    ],
)
def test_a_broken_configuration_is_invalid(repository: Repository, configuration: str, words: str) -> None:
    repository.text(configuration)
    failing(repository.step(), 2, "invalid", words)


def test_a_broken_baseline_is_told_before_anything_is_measured(repository: Repository) -> None:
    (repository.folder / ".reprokit/baselines").mkdir(parents=True)
    (repository.folder / ".reprokit/baselines/cpu.json").write_text("{}")
    step = repository.step()
    failing(step, 2, "invalid", ".reprokit/baselines/cpu.json")
    assert "probe [" not in step.stderr


def test_an_earlier_run_is_not_taken_for_this_one(repository: Repository) -> None:
    folder = repository.runner / "reprokit/cpu"
    folder.mkdir(parents=True)
    for name in ("fingerprint.json", "comparison.json"):
        (folder / name).write_text("old")
    (folder / "mine.txt").write_text("kept")
    repository.text("")
    failing(repository.step(), 2, "invalid", "")
    assert {file.name for file in folder.iterdir()} == {"report.md", "probe.log", "mine.txt"}


def test_a_name_that_is_none_is_told_in_the_outputs_too(repository: Repository) -> None:
    step = repository.step(cell="../../cpu")
    assert (step.code, step.outputs["verdict"], step.outputs["report"]) == (2, "invalid", "")
    assert not (repository.runner.parent / "cpu").exists()
    assert "### ! invalid: the gate could not run" in step.summary


def test_an_output_that_cannot_be_written_is_told_in_the_summary(repository: Repository) -> None:
    (repository.folder / "file").write_text("")
    step = repository.step("--output", "file/x")
    assert (step.code, step.outputs["verdict"]) == (2, "invalid")
    assert "file/x: cannot be written" in step.summary


def test_a_hostile_message_starts_no_workflow_command(repository: Repository) -> None:
    repository.configure(cell(python="x\n::set-output name=verdict::holds"))
    step = repository.step()
    assert step.code == 3, step.stderr
    for line in (step.stdout + step.stderr).splitlines():
        assert not line.lstrip().startswith("::set-output")


@pytest.mark.torch
def test_the_suggested_commands_keep_the_options(approved: Repository) -> None:
    approved.configure(cell(variables={"ATEN_CPU_CAPABILITY": "default"}))
    (approved.folder / "reprokit.yml").rename(approved.folder / "r.yml")
    (approved.folder / ".reprokit/baselines").rename(approved.folder / "my baselines")
    step = approved.step("--config", "r.yml", "--baselines", "my baselines")
    assert step.code == 1, step.stderr
    again = "reprokit ci --cell cpu --config r.yml --baselines 'my baselines' --output again"
    assert f"    {again}\n" in step.stdout
    assert "--cell cpu --reason WHY --folder 'my baselines'\n" in step.stdout


@pytest.mark.torch
def test_fewer_cores_by_the_configuration_are_never_neutral(approved: Repository) -> None:
    if len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
        pytest.skip("one core, or no taskset")
    approved.configure(cell(exec=["taskset", "-c", "0"]), **{"on-external-change": "neutral"})
    step = approved.step()
    assert (step.code, step.outputs["verdict"]) == (1, "drifted"), step.stdout
    assert "cpu.available_cores" in step.summary


def test_a_log_that_cannot_be_written_is_told_in_the_summary(repository: Repository) -> None:
    repository.configure(cell(python="/nowhere/python"))
    command = f"exec {sys.executable} -m reprokit ci --cell cpu > /dev/full 2> /dev/full"
    files = {name: str(repository.runner / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    variables = {"GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(repository.runner), **files}
    done = subprocess.run(["sh", "-c", command], cwd=repository.folder, env={**os.environ, **variables})
    assert done.returncode == 3
    assert parsed((repository.runner / "GITHUB_OUTPUT").read_text())["verdict"] == "infrastructure"
    assert "infrastructure" in (repository.runner / "GITHUB_STEP_SUMMARY").read_text()


def test_an_image_cannot_fill_the_log(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprokit.cli import ci

    monkeypatch.setattr(ci, "MOST_LOG", 100)
    run = ci._Run("cpu", [])
    run.open(tmp_path / "out")
    shown: list[str] = []
    for length in (90, 5, 30, 1, 1):
        run.say("x" * length, shown.append)
    assert shown == ["x" * 90, "x" * 5, "… the rest of the log is left out"]
    assert (tmp_path / "out/probe.log").read_text().splitlines() == shown


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Step]:
    """A repository whose cell ran once in both modes, without a baseline."""
    pytest.importorskip("torch")
    made = Repository(tmp_path_factory.mktemp("both"))
    made.configure(cell(mode="both"))
    return made, made.step()


@pytest.mark.torch
def test_both_modes_without_a_baseline_get_an_approving_command_each(both: tuple[Repository, Step]) -> None:
    repository, step = both
    assert step.code == 5, step.stderr
    assert (step.outputs["verdict"], step.outputs["level"]) == ("no_baseline", "none")
    folder = repository.runner / "reprokit/cpu"
    assert {file.name for file in folder.iterdir()} == {
        "fingerprint.json",
        "comparison.json",
        "fingerprint-strict.json",
        "comparison-strict.json",
        "report.md",
        "probe.log",
    }
    assert step.outputs["fingerprint"] == str(folder / "fingerprint.json")
    for file, mode in (("fingerprint.json", "default"), ("fingerprint-strict.json", "strict")):
        assert json.loads((folder / file).read_text())["probe"]["mode"] == mode
        assert len(re.findall(rf"^reprokit baseline approve \S+/{file} --cell cpu", step.summary, re.M)) == 1
        assert f"\n## Mode {mode}\n\nMeasured on `" in step.summary
        assert f"::error title=reprokit%3A cpu mode {mode} no baseline::" in step.stdout
    log = (folder / "probe.log").read_text().splitlines()
    assert [line for line in log if line.startswith("mode ")] == ["mode default", "mode strict"]


@pytest.mark.torch
def test_each_mode_is_judged_against_its_own_approval(both: tuple[Repository, Step], tmp_path: Path) -> None:
    """The approval of default gets other numbers in one kernel: only default moved."""
    from reprokit.compare.modes import ONLY_DEFAULT
    from reprokit.model import canonical

    measured = both[0].runner / "reprokit/cpu"
    default = json.loads((measured / "fingerprint.json").read_text())
    (kernel,) = (stage for stage in default["stages"] if stage["name"] == "kernel.softmax.fp32")
    kernel["sha256"] = "sha256:" + "0" * 64
    (tmp_path / "default.json").write_bytes(canonical.encode(canonical.sealed(default)))
    repository = Repository(tmp_path)
    repository.configure(cell(mode="both"))
    repository.approve(str(tmp_path / "default.json"))
    repository.approve(str(measured / "fingerprint-strict.json"))
    step = repository.step()
    assert step.code == 1, step.stderr
    found = {
        mode: json.loads((repository.runner / f"reprokit/cpu/comparison{suffix}.json").read_text())
        for mode, suffix in (("default", ""), ("strict", "-strict"))
    }
    assert {mode: one["verdict"]["state"] for mode, one in found.items()} == {
        "default": "drifted",
        "strict": "holds",
    }
    assert [one["base"]["approval"] for one in found.values()] == [0, 1]
    assert (step.outputs["verdict"], step.outputs["level"]) == (
        "drifted",
        found["default"]["verdict"]["level"],
    )
    assert step.outputs["logit-hash"] == default["logit_hash"]
    assert step.outputs["fingerprint"].endswith("/fingerprint.json")
    assert step.stdout.count(ONLY_DEFAULT) == 2  # at the end of the text, and in the annotation
    assert step.summary.startswith("## reprokit: cell `cpu`\n\n**Only mode default moved: ")
    assert "### ✗ drifted" in step.summary.partition("## Mode strict")[0]
    assert "### ✓ holds" in step.summary.partition("## Mode strict")[2]
    assert "cpu mode strict" not in step.stdout


@pytest.mark.torch
def test_a_strict_that_fails_is_told_and_default_is_kept(repository: Repository) -> None:
    refusing = 'case "$*" in *"--mode strict"*) echo "no strict here" >&2; exit 9;; esac; exec "$@"'
    repository.configure(cell(mode="both", exec=["sh", "-c", refusing, "sh"]))
    step = repository.step()
    assert (step.code, step.outputs["verdict"], step.outputs["level"]) == (3, "infrastructure", "none")
    assert "### ! infrastructure: only mode default was judged" in step.summary
    assert "no strict here" in step.summary
    assert "\n## Mode default\n\nMeasured on `" in step.summary
    folder = repository.runner / "reprokit/cpu"
    assert (folder / "comparison.json").exists()
    assert not (folder / "fingerprint-strict.json").exists()


@pytest.mark.torch
def test_strict_alone_has_the_plain_names(repository: Repository) -> None:
    repository.configure(cell(mode="strict"))
    step = repository.step()
    assert step.code == 5, step.stderr
    fingerprint = json.loads(Path(step.outputs["fingerprint"]).read_text())
    assert fingerprint["probe"]["mode"] == "strict"
    assert fingerprint["class_key"].endswith(", mode strict")
    assert fingerprint["variables"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert step.outputs["fingerprint"].endswith("/fingerprint.json")
    assert "## Mode" not in step.summary
    assert not (repository.runner / "reprokit/cpu/fingerprint-strict.json").exists()
