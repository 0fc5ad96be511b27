"""What comes out of a container: lines and a document."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.engines import container
from reprokit.errors import ProbeFailed


@given(st.lists(st.binary()))
def test_lines_are_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    wanted = [line.decode("utf-8", "replace") for line in whole.split(b"\n")]
    assert list(container._lines(iter(pieces))) == (wanted if wanted[-1] else wanted[:-1])


def test_a_line_that_does_not_end_is_not_kept() -> None:
    found = list(container._lines(iter([b"x" * 40_000] * 100)))
    assert "".join(found) == "x" * 4_000_000
    assert max(map(len, found)) <= 2 * 65_536


def test_a_document_is_a_file_and_no_link_out_of_its_folder(tmp_path: Path) -> None:
    document = tmp_path / "fingerprint.json"
    with pytest.raises(ProbeFailed, match="the probe left no document: No such file"):
        container._document(document)
    document.symlink_to("/etc/passwd")
    with pytest.raises(ProbeFailed, match="the probe left no document: Too many levels"):
        container._document(document)
    document.unlink()
    document.mkdir()
    with pytest.raises(ProbeFailed, match="the probe left no document: Is a directory"):
        container._document(document)
    document.rmdir()
    os.mkfifo(document)
    assert container._document(document) == b""
    document.unlink()
    document.write_bytes(b"{}")
    assert container._document(document) == b"{}"


def test_a_document_of_any_size_is_not_read_into_memory(tmp_path: Path) -> None:
    document = tmp_path / "fingerprint.json"
    with document.open("wb") as stream:
        stream.truncate(10**10)
    assert len(container._document(document)) == 16 * 1024 * 1024 + 1  # one more than a document may have


def test_the_folder_of_the_document_can_be_written_and_not_found_by_others() -> None:
    with container._output() as folder:
        assert folder.stat().st_mode & 0o777 == 0o777
        assert folder.parent.stat().st_mode & 0o777 == 0o711
        assert len(folder.name) == 32
    assert not folder.parent.exists()
