"""Reading YAML: plain data and nothing else, each value with its line and column.

libyaml's parser is used where PyYAML has it: ten times as fast. It recurses without limit when it composes, so the
events are looked at first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from reprokit.errors import InvalidInput
from reprokit.model.reading import MAX_DEPTH, Place, excerpt, pointer, read_bytes

# SafeLoader knows the same tags; the C one has no SafeConstructor hooks that Python code could override
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# a byte order mark may only come first: within the text libyaml drops what the other parser keeps
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,29})")
_NUMBER = re.compile(rf"{_INTEGER.pattern}(?:\.[0-9]{{0,30}})?(?:[eE][-+]?[0-9]{{1,3}})?")
_MAX_BYTES = 2**20  # its nodes take 150 times as much memory
_TAG = "tag:yaml.org,2002:"
_TRUE, _FALSE, _NULL = ("yes", "true", "on"), ("no", "false", "off"), ("", "~", "null")


class Text:
    """A YAML document: its plain data, and where each part of it stands."""

    def __init__(self, path: str | Path) -> None:
        """Read the file at `path`.

        Raises:
            InvalidInput: it cannot be read, is no YAML, or holds more than plain data; with line and column.
        """
        self.path = path
        data = read_bytes(path)
        if len(data) > _MAX_BYTES:
            raise InvalidInput(
                f"{path}: larger than {_MAX_BYTES // 2**20} MiB, the most that YAML may have here"
            )
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode()
            raise InvalidInput(f"{path}: {_end(before)}: not UTF-8") from error
        if found := _FORBIDDEN.search(text):
            raise InvalidInput(f"{path}: {_end(text[: found.start()])}: not YAML: a control character")
        try:
            self._check(text)
            root: Any = yaml.compose(text, _LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            raise InvalidInput(f"{path}: {where}not YAML: {error.problem}") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{path}: not YAML: {' '.join(str(error).split())}") from error
        if root is None:
            raise InvalidInput(f"{path}: the file is empty")
        self._root = root
        self.data = self._plain(root)

    def error(self, place: Place, problem: str) -> InvalidInput:
        """The error for a problem at a place in the document."""
        line, column = self.position(place)
        return InvalidInput(f"{self.path}: line {line}, column {column}: {pointer(place)}: {problem}")

    def position(self, place: Place) -> tuple[int, int]:
        """Line and column, from 1, of the nearest there is to `place`: of a key, or of an item of a list."""
        node, mark = self._root, self._root.start_mark
        for part in place:
            if isinstance(node, yaml.MappingNode):
                pairs = {key.value: (key, value) for key, value in node.value}
                if part not in pairs:
                    break
                key, node = pairs[part]
                mark = key.start_mark
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
            else:
                break
        return mark.line + 1, mark.column + 1

    def _check(self, text: str) -> None:
        depth = documents = 0
        for event in yaml.parse(text, _LOADER):
            if isinstance(event, yaml.AliasEvent):  # a few lines of aliases can stand for gigabytes
                raise _refused("aliases are not supported", event)
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
            if depth > MAX_DEPTH:
                raise _refused(f"nested deeper than {MAX_DEPTH} levels", event)
            if documents > 1:
                raise _refused("a second document", event)

    def _plain(self, node: Any) -> Any:
        """A node as plain data.

        Raises:
            InvalidInput: it is, or holds, anything else.
        """
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return dict(self._pairs(node))
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self._plain(item) for item in node.value]
        if isinstance(node, yaml.ScalarNode):
            if kind in ("str", "timestamp"):  # a date stands for itself
                return node.value
            if kind == "null" and node.value.lower() in _NULL:
                return None
            if kind == "bool" and node.value.lower() in _TRUE + _FALSE:
                return node.value.lower() in _TRUE
            if kind in ("int", "float"):
                return self._number(node, kind)
        tag = node.tag.replace(_TAG, "!!")
        raise self._at(node, f"{tag[:60]} is not supported: only strings, numbers, lists and mappings are")

    def _pairs(self, node: Any) -> Iterator[tuple[str, Any]]:
        seen = set()
        for key, value in node.value:
            if key.tag != f"{_TAG}str":
                raise self._at(key, "a key must be a string")
            if key.value in seen:
                raise self._at(key, f"the key {excerpt(key.value)} stands twice")
            seen.add(key.value)
            yield key.value, self._plain(value)

    def _number(self, node: Any, kind: str) -> int | float:
        if not (_INTEGER if kind == "int" else _NUMBER).fullmatch(
            node.value
        ):  # 017 is fifteen in YAML, and seventeen to most
            raise self._at(
                node, f"{excerpt(node.value)} is no plain number: write it in decimal, or in quotes"
            )
        number = int(node.value) if kind == "int" else float(node.value)
        if kind == "float" and not abs(number) < float("inf"):
            raise self._at(node, "a number must be finite")
        return number

    def _at(self, node: Any, problem: str) -> InvalidInput:
        mark = node.start_mark
        return InvalidInput(
            f"{self.path}: line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}"
        )


def _end(text: str) -> str:
    """Where the character after `text` stands."""
    return f"line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
