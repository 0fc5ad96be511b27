"""What the runner understands of what is written for it, by a reader made from its documented rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.github import runtime
from tests.conftest import Run

COMMAND = re.compile(r"::(?P<name>[\w-]+)(?: (?P<properties>[^:]*))?::(?P<data>.*)")
TEXT = st.text(st.characters(codec="utf-8"), max_size=200)


@pytest.fixture(autouse=True)
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    runtime._told.clear()
    return tmp_path


def read_outputs(text: str) -> dict[str, str]:
    """The outputs in a step's file, as the runner reads it: `name<<end`, lines, `end`."""
    found, lines = {}, text.split("\n")
    while lines and lines[0]:
        name, end = lines.pop(0).split("<<", 1)
        place = lines.index(end)
        found[name] = "\n".join(lines[:place])
        lines = lines[place + 1 :]
    assert lines == [""]
    return found


def read_commands(log: str) -> list[tuple[str, dict[str, str], str]]:
    """Name, properties and data of each command in a log; lines that the runner shows are left out."""

    def plain(text: str) -> str:
        for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(code, character)
        return text

    found = []
    for line in re.split(r"\r\n|\r|\n", log):
        assert "##[" not in line
        if line.lstrip().startswith("::"):
            match = COMMAND.fullmatch(line)
            assert match, line
            pairs = [pair.split("=", 1) for pair in (match["properties"] or "").split(",") if pair]
            found.append((match["name"], {key: plain(value) for key, value in pairs}, plain(match["data"])))
    return found


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True), TEXT, max_size=5))
def test_outputs_arrive_as_they_are(values: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr(runtime, "_append", lambda _, text: written.append(text))
        runtime.outputs(values)
    assert read_outputs("".join(written)) == values


def test_outputs_are_appended(step: Path) -> None:
    (step / "output").write_text("mine=1\n")
    runtime.outputs({"verdict": "holds"})
    text = (step / "output").read_text()
    assert text.startswith("mine=1\n")
    assert read_outputs(text.removeprefix("mine=1\n")) == {"verdict": "holds"}


def test_a_name_that_breaks_out_is_refused() -> None:
    with pytest.raises(ValueError, match="is no name of an output"):
        runtime.outputs({"verdict<<x\nlevel": "bit"})


@given(message=TEXT, title=TEXT)
def test_an_annotation_is_one_command_with_its_words(message: str, title: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(runtime.click, "echo", said.append)
        runtime._told.clear()
        runtime.annotation("error", message, title)
    ((name, properties, data),) = read_commands("\n".join(said).replace("##[", ""))
    assert (name, list(properties)) == ("error", ["title"])
    if "##[" not in message + title:
        assert (properties["title"], data) == (title, message)


def test_a_long_message_is_cut_to_what_the_runner_shows(capsys: pytest.CaptureFixture[str]) -> None:
    runtime.annotation("error", "x" * 5000, "t")
    data = capsys.readouterr().out.rstrip("\n").split("::")[2]
    assert (len(data), data[-1]) == (4096, "…")


def test_no_more_annotations_of_a_level_than_the_runner_takes(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        runtime.annotation("warning", str(number), "t")
    runtime.annotation("error", "still told", "t")
    commands = read_commands(capsys.readouterr().out)
    assert [name for name, _, _ in commands] == ["warning"] * 10 + ["error"]


@given(TEXT)
def test_no_line_of_a_log_is_a_command(text: str) -> None:
    assert read_commands(runtime.harmless_line(text.replace("\n", " ").replace("\r", " "))) == []


@pytest.mark.parametrize(
    "line", ["::error::x", "  ::set-output name=verdict::holds", "\t::x::", "a ##[error]b", "##[add-mask]x"]
)
def test_what_would_be_a_command_is_shown_and_not_obeyed(line: str) -> None:
    shown = runtime.harmless_line(line)
    assert read_commands(shown) == []
    assert shown.replace("│ ", "").replace("## [", "##[") == line


def test_a_summary_is_appended(step: Path) -> None:
    (step / "summary").write_text("before\n")
    runtime.summary("# mine")
    assert (step / "summary").read_text() == "before\n# mine\n"


def test_a_summary_that_is_too_long_is_replaced_by_the_short_one(step: Path) -> None:
    (step / "summary").write_text("x" * (runtime.SUMMARY_BYTES - 500))
    runtime.summary("é" * 300, short="short")
    text = (step / "summary").read_text()
    assert text.endswith(
        "xshort\n\nThe whole report is too long for a summary: see the step's output `report`.\n"
    )
    runtime.summary("y" * 600, short="z" * 600)
    assert (step / "summary").read_text() == text
    assert (step / "summary").stat().st_size < runtime.SUMMARY_BYTES


def test_a_file_that_cannot_be_written_is_a_warning(
    step: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(step / "missing" / "output"))
    runtime.outputs({"verdict": "holds"})
    assert capsys.readouterr().err == "warning: GITHUB_OUTPUT cannot be written: No such file or directory\n"


def test_outside_of_a_workflow_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name)
    runtime.outputs({"verdict": "holds"})
    runtime.summary("# x")
    runtime.annotation("error", "x", "t")
    assert capsys.readouterr() == ("", "")


def test_what_an_error_quotes_is_no_command(run: Run) -> None:
    done = run("ci", "--cell", "##[add-mask]x")
    assert done.returncode == 2
    assert "## [add-mask]x" in done.stderr
    assert read_commands(done.stderr) == []
