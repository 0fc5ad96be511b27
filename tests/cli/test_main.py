"""The command line as a whole: help, version, errors and what a command imports."""

import subprocess
import sys

import pytest

import reprokit
from reprokit.cli import COMMANDS

HEAVY = {
    "torch",
    "numpy",
    "rich",
    "jsonschema",
    "yaml",
    "requests",
    "docker",
    "importlib.metadata",
    "msgspec",
}


def test_version(run):
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"reprokit, version {reprokit.__version__}\n")


@pytest.mark.parametrize("command", [*COMMANDS, "baseline approve", "baseline show"])
def test_every_command_teaches(run, command):
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert "Usage: " in done.stdout
    assert (
        command == "baseline" or f"reprokit {command}" in done.stdout.split("Options:")[0].split("\n", 1)[1]
    ), "no example"


def test_unknown_commands_and_options_are_usage_errors(run):
    for arguments in (
        ["prob"],
        ["probe"],
        ["probe", "-o", "x.json", "--profile", "fast"],
        ["compare", "--levl", "bit"],
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Error: " in done.stderr
        assert "Traceback" not in done.stderr


def test_an_error_is_one_line_and_debug_shows_where(run, tmp_path):
    done = run("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert done.returncode == 2
    assert done.stderr == f"reprokit: {tmp_path / 'b.json'}: no such file\n"
    assert "Traceback" in run("--debug", "compare", tmp_path / "a.json", tmp_path / "b.json").stderr


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--version"], set()),
        (["compare", "--help"], set()),
        (["compare", "/nonexistent", "/nonexistent"], {"msgspec"}),
    ],
)
def test_a_command_imports_only_what_it_uses(arguments, allowed):
    code = (
        "import sys, reprokit.cli\n"
        f"sys.argv = ['reprokit', *{arguments!r}]\n"
        "try:\n    reprokit.cli.main()\nexcept SystemExit:\n    print('|', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.rpartition("|")[2].split()) <= allowed
