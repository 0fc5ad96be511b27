"""Hostile documents: each is refused with one line that says what is wrong and where."""

import json
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import InvalidInput
from reprokit.model import canonical, reading
from reprokit.model.config import Config
from tests.compare import builders

HOSTILE = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n", "the file is empty"),
    "cut": (b'{"a": [1, 2', "line 1, column 12: not JSON"),
    "a NaN token": (b'{"a": NaN}', 'NaN is no JSON number; write "float:nan"'),
    "an infinity token": (b'{"a": -Infinity}', '-Infinity is no JSON number; write "float:-inf"'),
    "deep arrays": (b"[" * 100_000 + b"]" * 100_000, "nested deeper than 32 levels"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than 32 levels"),
    "a duplicate key": (b'{"a": {"b": 1, "b": 2}}', 'the key "b" stands twice in one object'),
    "a duplicate key, escaped": (b'{"a": 1, "\\u0061": 2}', 'the key "a" stands twice in one object'),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7: not UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "byte 0: not UTF-8"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "a string holds half of a surrogate pair"),
    "a number of 10,000 digits": (b'{"a": ' + b"9" * 10_000 + b"}", "digits"),
    "two documents": (b"{}{}", "line 1, column 3: not JSON: Extra data"),
}


@pytest.mark.parametrize(("data", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_json_is_refused_in_one_line(tmp_path, data, expected):
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as refused:
        reading.load_json(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_hundred_megabytes_are_refused_unread(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    with pytest.raises(InvalidInput, match="larger than 16 MiB"):
        reading.load_json(path)


def test_a_twin_among_many_keys_is_found_in_one_pass():
    keys = ",".join(f'"{i}":1' for i in range(200_000))
    with pytest.raises(InvalidInput, match='the key "7" stands twice'):
        reading.parse_json(f'{{{keys},"7":1}}'.encode(), "x")


def test_only_the_first_problems_of_millions_are_asked_for():
    raw = {"version": 1, "cells": [{}] * 200_000}
    assert len(list(reading.explain(raw, "config"))) == reading.MAX_PROBLEMS


def test_all_missing_keys_are_named_at_once():
    assert list(reading.explain({}, "config")) == ['/: expected the keys "version" and "cells", found none']


def test_a_last_line_break_is_no_part_of_a_name():
    with pytest.raises(InvalidInput, match="/cells/0/name: expected pattern"):
        reading.decode(config(name="cpu\n"), Config, "x")


def test_a_document_of_another_type_is_told_apart(tmp_path):
    from reprokit.model.fingerprint import Fingerprint

    path = tmp_path / "x.json"
    path.write_text('{"document": "baseline"}')
    with pytest.raises(InvalidInput, match='/document: expected "fingerprint", found "baseline"'):
        reading.read(path, Fingerprint)


def test_an_unending_string_of_quotes_is_read_once():
    data = b'"' + b'\\"' * 2_000_000
    with pytest.raises(InvalidInput, match="not JSON"):
        reading.parse_json(data, "x")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("missing", "no such file"), ("folder", "not a regular file"), ("fifo", "not a regular file")],
)
def test_what_is_no_file_is_refused(tmp_path, name, expected):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidInput, match=expected):
        reading.load_json(tmp_path / name)


@given(st.integers(1, 60), st.booleans())
def test_depth_is_counted_outside_strings(depth, array):
    data = (b"[" if array else b'{"[[[[\\"{":') * depth + b"1" + (b"]" if array else b"}") * depth
    if depth <= reading.MAX_DEPTH:
        reading.parse_json(data, "x")
    else:
        with pytest.raises(InvalidInput, match="nested deeper"):
            reading.parse_json(data, "x")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        reading.parse_json(data, "x")
    except InvalidInput as refused:
        assert str(refused).startswith("x: ")


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_what_canonical_json_writes_is_read(value):
    document = {"value": value}
    assert canonical.encode(reading.parse_json(canonical.encode(document), "x")) == canonical.encode(document)


def config(**cell: object) -> dict[str, object]:
    return {"version": 1, "cells": [{"name": "cpu", **cell}]}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (config(levle="bit"), '/cells/0: expected only known keys, found "levle"; did you mean "level"?'),
        (
            config(level="bits"),
            '/cells/0/level: expected "bit" or "conclusion" or "process", found "bits"; did you mean "bit"?',
        ),
        (config(seed=-1), "/cells/0/seed: expected minimum 0, found -1"),
        (config(name="../x"), "/cells/0/name: expected pattern"),
        ({"version": 1}, '/: expected the key "cells", found none'),
        ([], "/: expected object, found []"),
        (config(variables={"A": 1.5}), "/cells/0/variables/A: expected string, found 1.5"),
    ],
)
def test_a_violation_names_pointer_expectation_and_finding(raw, expected):
    with pytest.raises(InvalidInput) as refused:
        reading.decode(raw, Config, "x")
    assert str(refused.value).startswith(f"x: {expected}")


@pytest.fixture(scope="module")
def fingerprint_json() -> bytes:
    return canonical.encode(msgspec.to_builtins(builders.fingerprint()))


def test_an_edited_document_is_refused(fingerprint_json):
    raw = json.loads(fingerprint_json)
    raw["torch"]["num_threads"] += 1
    from reprokit.model.fingerprint import Fingerprint

    with pytest.raises(InvalidInput, match="/digest: the content has digest sha256:.*: it was edited"):
        reading.decode(raw, Fingerprint, "x")


def test_a_newer_schema_version_is_told_apart(fingerprint_json):
    from reprokit.model.fingerprint import Fingerprint

    raw = {**json.loads(fingerprint_json), "schema_version": 2}
    with pytest.raises(
        InvalidInput, match="/schema_version: expected 1, found 2: it was written by a newer reprokit"
    ):
        reading.decode(raw, Fingerprint, "x")


def test_a_canonical_document_is_known_by_its_bytes_and_no_other_is() -> None:
    plain = msgspec.to_builtins(builders.fingerprint())
    written = canonical.encode(canonical.sealed(plain))
    assert reading._sealed_as_written(written)
    assert not reading._sealed_as_written(written.replace(b'"float32"', b'"float16"', 1))
    # another spelling of the same content: the digest is right, and found so from the content
    spaced = json.dumps(json.loads(written), indent=1).encode()
    assert not reading._sealed_as_written(spaced)
    assert reading.digest_problem(json.loads(spaced)) is None
