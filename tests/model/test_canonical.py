"""Canonical JSON: one document, one sequence of bytes; files appear whole or not at all."""

import json
import math
import os
import signal
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.model import canonical

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_what_is_written_reads_back_and_writes_the_same_bytes(value):
    data = canonical.encode(value)
    assert json.loads(data) == value
    assert canonical.encode(json.loads(data)) == data
    assert data.isascii()


@given(st.floats())
def test_every_float_keeps_its_bits(x):
    back = canonical.number(json.loads(canonical.encode({"x": x}))["x"])
    assert math.isnan(back) if math.isnan(x) else struct.pack("<d", back) == struct.pack("<d", x)


def test_the_bytes_themselves():
    value = {"b": [1, 1.0, -0.0, 1e16, math.nan, math.inf, -math.inf], "a": "é"}
    expected = rb'{"a":"\u00e9","b":[1,1.0,-0.0,1e+16,"float:nan","float:inf","float:-inf"]}'
    assert canonical.encode(value) == expected


def test_the_digest_leaves_out_itself_and_the_run():
    document = {"a": 1, "run": {"started": "now"}}
    known = "sha256:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"  # of {"a":1}
    assert canonical.digest(document) == canonical.digest({"a": 1}) == known
    assert canonical.digest(canonical.sealed(document)) == known
    assert canonical.digest({"a": 2}) != known


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "a.json"
    target.write_bytes(b"old")
    canonical.write_file(target, b"new")
    assert target.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    canonical.write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_loop_of_links_is_replaced_by_the_file(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    canonical.write_file(tmp_path / "loop", b"new")
    assert (tmp_path / "loop").read_bytes() == b"new"


def test_what_another_process_left_behind_is_neither_in_the_way_nor_removed(tmp_path):
    stale = tmp_path / f".a.json.{os.getpid()}.tmp"
    stale.write_bytes(b"another's")
    canonical.write_file(tmp_path / "a.json", b"new")
    assert stale.read_bytes() == b"another's"


def test_a_pipe_is_written_to(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
        canonical.write_file(fifo, b"through")
        assert reader.communicate()[0] == b"through"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.json").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        canonical.write_file(tmp_path / "a.json", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"old"}


WRITER = """
import sys
from reprokit.model import canonical
print("ready", flush=True)
turn = 0
while True:
    canonical.write_file(sys.argv[1], (b"%d" % (turn % 10)) * 3_000_000)
    turn += 1
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    target = tmp_path / "a"
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", WRITER, target], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            while not target.exists():
                assert writer.poll() is None, "it ended by itself"
            writer.send_signal(signal.SIGKILL)
        data = target.read_bytes()
        assert len(data) == 3_000_000
        assert len(set(data)) == 1
