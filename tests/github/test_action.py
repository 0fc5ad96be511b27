"""What action.yml promises, and the program that it installs itself with."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "bin" / "setup-venv"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
# what an interpreter lacks that cannot install reprokit
OLD = "sys.version_info = (3, 9, 18, 'final', 0)"
NO_VENV = "find = importlib.util.find_spec; importlib.util.find_spec = lambda n: None if n == 'ensurepip' else find(n)"


def test_the_readme_has_every_input_with_its_default() -> None:
    readme = (ROOT / "README.md").read_text()
    for name, facts in ACTION["inputs"].items():
        default = "" if facts.get("required") else f"`{facts['default']}`"
        assert re.search(rf"^\| `{name}` \| .* \| {re.escape(default)} *\|$", readme, re.MULTILINE), name


def test_the_readme_has_every_output() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ACTION["outputs"]:
        assert f"`{name}`" in readme, name


def test_no_input_is_part_of_a_script() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", "")


def test_every_script_knows_its_python_by_a_variable_and_isolates_it() -> None:
    scripts = [step["run"] for step in STEPS if "run" in step]
    calls = [line for script in scripts for line in script.splitlines() if '"$PYTHON"' in line]
    assert len(calls) == 2
    assert all('"$PYTHON" -I ' in line for line in calls)


def test_an_interpreter_that_is_not_there_is_told_at_the_pull_request(tmp_path: Path) -> None:
    variables = {"PYTHON": "/nowhere/python3", "GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(tmp_path)}
    variables |= {"GITHUB_OUTPUT": str(tmp_path / "output"), "PATH": os.environ["PATH"]}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[0]["run"]]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "/nowhere/python3: No such file or directory" in done.stderr
    assert done.stdout.startswith("::error title=reprokit infrastructure::reprokit could not be installed")
    assert not (tmp_path / "output").exists()


def test_an_older_python_understands_the_setup_well_enough_to_refuse() -> None:
    ast.parse(SETUP.read_text(), feature_version=(3, 7))


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (OLD, "reprokit needs Python 3.10 or newer, .* is python3.9: .* by the action's input `python`"),
        (NO_VENV, r"cannot make virtual environments: install python3\.\d+-venv \(Debian, Ubuntu\), or .*"),
    ],
)
def test_an_interpreter_that_will_not_do_is_told_at_once(tmp_path: Path, lacking: str, words: str) -> None:
    argv = [str(SETUP), str(tmp_path / "venv")]
    program = f"import importlib.util, runpy, sys; {lacking}; sys.argv = {argv!r}; "
    program += f"runpy.run_path({str(SETUP)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(f"setup: .*{words}\n", done.stderr), done.stderr
    assert not (tmp_path / "venv").exists()
