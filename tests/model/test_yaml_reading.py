"""YAML: plain data, each value with its place, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import InvalidInput
from reprokit.model import yaml_reading
from reprokit.model.yaml_reading import Text

REFUSED = {
    "a date for a key": ("2020-01-01: 1\n", "line 1, column 1: not YAML: a key must be a string"),
    "a list for a key": ("? [a]\n: 1\n", "line 1, column 3: not YAML: a key must be a string"),
    "a merge key": ("a: {b: 1}\n<<: {c: 1}\n", "line 2, column 1: not YAML: a key must be a string"),
    "a tag that does not fit": ('a: !!bool "zz"\n', "line 1, column 4: not YAML: !!bool is not supported"),
    "a whole number that is none": (
        "a: !!int 1.5\n",
        'line 1, column 4: not YAML: "1.5" is no plain number',
    ),
    "nothing that is something": ("a: !!null zz\n", "line 1, column 4: not YAML: !!null is not supported"),
    "an empty number": ('a: !!int ""\n', 'line 1, column 4: not YAML: "" is no plain number'),
    "a huge number": (f"a: {'9' * 5000}\n", "line 1, column 4: not YAML: "),
    "an octal number": ("a: 0o17\nb: 017\n", 'line 2, column 4: not YAML: "017" is no plain number'),
    "sixty-fold digits": ("a: 1:30\n", 'line 1, column 4: not YAML: "1:30" is no plain number'),
    "infinity": ("a: .inf\n", 'line 1, column 4: not YAML: ".inf" is no plain number'),
    "no number": ("a: .nan\n", 'line 1, column 4: not YAML: ".nan" is no plain number'),
    "a number that is too large": ("a: 1.0e+999\n", "line 1, column 4: not YAML: a number must be finite"),
    "bytes": ("a: !!binary aGk=\n", "line 1, column 4: not YAML: !!binary is not supported"),
    "a set": ("a: !!set {b, c}\n", "line 1, column 4: not YAML: !!set is not supported"),
    "a key twice": (
        "version: 1\ncells: []\nversion: 1\n",
        'line 3, column 1: not YAML: the key "version" stands twice',
    ),
    "aliases": ("a: &a [1]\nb: *a\n", "line 2, column 4: not YAML: aliases are not supported"),
    "an alias of itself": ("&a [*a]\n", "line 1, column 5: not YAML: aliases are not supported"),
    "a tag": (
        "a: !!python/object/apply:os.system [id]\n",
        "line 1, column 4: not YAML: !!python/object/apply",
    ),
    "a tag of one's own": ("a: !x [id]\n", "line 1, column 4: not YAML: !x is not supported"),
    "a tab": ("a:\n\t- b\n", "line 2, column 1: not YAML"),
    "very deep lists": ("[" * 50_000, "not YAML: "),
    "deep lists": ("[" * 50, "line 1, column 33: not YAML: nested deeper than 32 levels"),
    "deep mappings": ("{a: " * 50_000, "not YAML: nested deeper than 32 levels"),
    "deep blocks": ("\n".join(" " * n + "a:" for n in range(50)), "not YAML: nested deeper than 32 levels"),
    "two documents": ("a: 1\n---\nb: 1\n", "line 2, column 1: not YAML: a second document"),
    "a NUL": ("a: 1\nb: \0\n", "line 2, column 4: not YAML: a control character"),
    "a byte order mark within": (
        "a: 1\n\ufeffb: 2\n",
        "line 2, column 1: not YAML: a control character",
    ),
    "an escape": ("a: \x1b[2J\n", "line 1, column 4: not YAML: a control character"),
    "nothing": ("", "the file is empty"),
    "a comment alone": ("# x\n", "the file is empty"),
    "an open list": ("a: [1,\n", "line 2, column 1: not YAML"),
    "an open string": ('a: "x\n', "line 2, column 1: not YAML"),
}


@pytest.fixture(params=["C", "Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        monkeypatch.setattr(yaml_reading, "_LOADER", yaml.SafeLoader)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("this PyYAML has no libyaml")
    return str(request.param)


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
def test_hostile_yaml_is_refused_in_one_line(parser: str, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "x.yml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        Text(path)
    assert f"{path}: {expected}" in str(refused.value) or expected.startswith("not YAML")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a: \xff\n", "line 1, column 4: not UTF-8"),
        (b"\xef\xbb\xbfa: 1\nb\xc3\xbc: \xff\n", "line 2, column 5: not UTF-8"),
        ("a: 1\n".encode("utf-16"), "line 1, column 1: not UTF-8"),
        (b"a: [" + b"a," * 2**19 + b"]", "larger than 1 MiB, the most that YAML may have here"),
        (b"\x00" * 10, "line 1, column 1: not YAML: a control character"),
    ],
)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "x.yml").write_bytes(data)
    with pytest.raises(InvalidInput, match=expected):
        Text(tmp_path / "x.yml")


def test_plain_data_is_read_as_it_is_meant(parser: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_bytes(
        b"\xef\xbb\xbfs: text\r\nq: '1'\r\ni: 12\r\nf: 1.5\r\nt: yes\r\nn: ~\r\nd: 2026-01-02\r\nl: [a, {b: []}]\r\n"
    )
    assert Text(path).data == {
        "s": "text",
        "q": "1",
        "i": 12,
        "f": 1.5,
        "t": True,
        "n": None,
        "d": "2026-01-02",
        "l": ["a", {"b": []}],
    }


def test_each_part_has_its_place(parser: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("version: 1\ncells:\n  - name: cpu\n    level: bits\n  - {name: gpu, runs-on: [a, b]}\n")
    text = Text(path)
    assert text.position(()) == (1, 1)
    assert text.position(("cells",)) == (2, 1)
    assert text.position(("cells", 0)) == (3, 5)
    assert text.position(("cells", 0, "level")) == (4, 5)
    assert text.position(("cells", 1, "runs-on", 1)) == (5, 30)
    assert text.position(("cells", 1, "missing", 3)) == (5, 5)
    assert (
        str(text.error(("cells", 0, "level"), "wrong")) == f"{path}: line 4, column 5: /cells/0/level: wrong"
    )


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_input_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yml"
    path.write_bytes(data)
    try:
        Text(path)
    except InvalidInput as error:
        assert str(path) in str(error)


TOKENS = [
    "a",
    "b",
    ": ",
    "- ",
    "? ",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "&a ",
    "*a",
    "!!int ",
    "!!null ",
    "!!map ",
]
TOKENS += [
    "!x ",
    "|",
    ">",
    "'",
    '"',
    "#",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "<<",
    "1.5",
    "017",
    "~",
    ".nan",
    "\t",
    "=",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=30).map("".join))
def test_no_text_of_yaml_s_own_tokens_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "tokens.yml"
    path.write_text(text)
    try:
        json.dumps(Text(path).data, allow_nan=False)
    except InvalidInput as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error)
