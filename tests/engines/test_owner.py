"""What belongs to a living process, and what one that was killed has left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.engines import owner
from tests import processes

pytestmark = processes.linux
_STARTED = """
import signal, sys
from reprokit.engines import owner
with owner.temporary() as folder:
    (folder / "document").touch()
    print(owner.own(), folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def run_with_a_folder() -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A process that holds a temporary folder until it is told to go on: it, its name as owner, the folder."""
    command = [sys.executable, "-c", _STARTED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            name, _, folder = process.stdout.readline().strip().partition(" ")
            yield process, name, Path(folder)
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_living_process_has_not_ended() -> None:
    assert not owner.ended(owner.own())


def test_a_killed_process_has_ended() -> None:
    with run_with_a_folder() as (process, name, _):
        assert not owner.ended(name)
        process.kill()
        process.wait()
        assert owner.ended(name)


def test_a_process_that_got_the_id_of_an_ended_one_is_another() -> None:
    place, pid, started = owner.own().rsplit(".", 2)
    assert owner.ended(f"{place}.{pid}.{int(started) - 1}")


def test_what_cannot_be_seen_from_here_has_not_ended() -> None:
    boot, namespace, pid, started = owner.own().split(".")
    dead = f"{int(started) - 1}"
    assert owner.ended(f"{boot}.{namespace}.{pid}.{dead}")
    assert not owner.ended(f"{'0' * 32}.{namespace}.{pid}.{dead}")  # another machine
    assert not owner.ended(f"{boot}.1.{pid}.{dead}")  # another container
    assert not owner.ended(f"{boot}.{namespace}.{10**30}.{dead}")


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{32}(\.\d+){3}", fullmatch=True)))
def test_any_label_can_be_asked(label: str) -> None:
    assert owner.ended(label) is False


def test_a_folder_is_gone_with_its_run_and_after_a_fault() -> None:
    with pytest.raises(KeyError), owner.temporary() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "x").mkdir()
        raise KeyError
    assert not folder.exists()


def test_the_folder_of_a_killed_run_is_removed_by_the_next() -> None:
    with run_with_a_folder() as (process, _, folder):
        process.kill()
        process.wait()
        assert (folder / "document").exists()
        with owner.temporary():
            assert not folder.exists()


def test_the_folder_of_a_living_run_stays(tmp_path: Path) -> None:
    foreign = tmp_path / "reprokit-run-mine"
    foreign.mkdir()
    with run_with_a_folder() as (process, _, folder):
        with owner.temporary():
            assert (folder / "document").exists()
        process.communicate()
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_link_is_no_folder_of_a_run(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    place, pid, started = owner.own().rsplit(".", 2)
    link = tmp_path / f"reprokit-run-{place}.{pid}.{int(started) - 1}-x"
    link.symlink_to(precious)
    with owner.temporary():
        assert precious.is_dir()


def test_a_folder_that_is_too_deep_for_python_goes_too(tmp_path: Path) -> None:
    with owner.temporary() as folder:
        before = Path.cwd()
        try:
            os.chdir(folder)
            for _ in range(3000):
                Path("d").mkdir()
                os.chdir("d")
        finally:
            os.chdir(before)
    assert not folder.exists()
