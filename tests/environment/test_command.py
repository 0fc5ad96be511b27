"""`reprokit env`: the document, the table, and what a hostile value may do to a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click.testing
import pytest

from reprokit.cli import env
from reprokit.errors import ProbeFailed
from tests import processes

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def output() -> bytes:
    return env.collected("private")


def invoke(monkeypatch: pytest.MonkeyPatch, output: bytes, *arguments: str) -> str:
    monkeypatch.setattr(env, "collected", lambda detail: output)
    result = click.testing.CliRunner().invoke(env.env_command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_json_is_the_document(output: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(monkeypatch, output, "--json").encode() == output


def test_the_table_names_every_field_by_its_dotted_path(
    output: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(output)
    lines = invoke(monkeypatch, output).splitlines()
    assert f"torch.cpu_capability = {document['torch']['cpu_capability']}" in lines
    assert f"packages.numpy = {document['packages']['numpy']}" in lines
    build_id = document["libraries"]["libtorch_cpu.so"]["build_id"]
    assert f'libraries["libtorch_cpu.so"].build_id = {build_id}' in lines
    assert "torch.inductor = not asked: torch._inductor is not imported in this process" in lines
    assert lines.count("[gpus]") == 1
    assert not [line for line in lines if line.endswith(("None", "null"))]


def test_untrusted_text_cannot_steer_the_terminal(output: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from reprokit.model import canonical

    document: dict[str, Any] = json.loads(output)
    document["variables"] = {"MKL_\x1b]0;x": "a\x1b[31m\r\n\u202e[bold]b[/bold]"}
    hostile = canonical.encode(canonical.sealed(document))
    text = invoke(monkeypatch, hostile)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a\\x1b[31m\\r\\n\\u202e[bold]b[/bold]" in text


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit('boom\\x1b')", r"ended with exit code 1: boom\\x1b"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal 9: it said nothing"),
    ],
)
def test_a_collector_that_fails_is_reported_in_one_line(
    code: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprokit import launch

    monkeypatch.setattr(launch, "command", lambda *_: [sys.executable, "-c", code])
    with pytest.raises(ProbeFailed, match=expected):
        env.collected("private")


@processes.linux
def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    with processes.hanging(tmp_path, "reprokit.environment", "env") as command:
        assert len(command.processes) == 2
        command.command.kill()
        assert command.ended() == set(command.processes)


def test_an_invalid_document_is_refused() -> None:
    with pytest.raises(ProbeFailed, match="no valid document"):
        env.decoded(b'{"document":"environment"}')


def test_importing_the_command_imports_neither_torch_nor_rich() -> None:
    code = (
        "import sys, reprokit.cli.env; print([m for m in ('torch', 'rich', 'msgspec') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
