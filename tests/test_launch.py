"""How a process of the probe side hands over its document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HAND_OVER = """
import os, sys
from reprokit import launch
output = launch.claim_output()
print("a library's word")
os.write(1, b"another's\\n")
launch.hand_over(output, b"{}", *sys.argv[1:])
"""


def hand_over(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HAND_OVER, *map(str, arguments)], capture_output=True, text=True
    )


def test_the_document_alone_is_on_standard_output() -> None:
    done = hand_over()
    assert (done.returncode, done.stdout) == (0, "{}\n")
    assert "another's" in done.stderr


def test_the_document_goes_to_a_file(tmp_path: Path) -> None:
    done = hand_over(tmp_path / "x.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "x.json").read_text() == "{}\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "x.json"]


def test_what_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    done = hand_over(tmp_path / "missing" / "x.json")
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr
    assert list(tmp_path.iterdir()) == []
