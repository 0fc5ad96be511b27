"""The README tells of every key of the configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reprokit.model.schema import schema

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = (
    README.partition("### What `reprokit.yml` can say\n")[2].partition("\n## ")[0].partition("\n### ")[0]
)
SCHEMA = schema("config")
OBJECTS = {"Config": SCHEMA} | {name: SCHEMA["$defs"][name] for name in ("Cell", "Image", "Limits")}
KEYS = [(name, key) for name, node in OBJECTS.items() for key in node["properties"]]


def test_no_object_of_the_schema_is_forgotten() -> None:
    assert {*SCHEMA["$defs"], "Config"} == set(OBJECTS)


def told(key: str, section: str) -> bool:
    return re.search(rf"`{re.escape(key)}(?::[^`]*)?`", section) is not None


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_every_key_stands_in_the_readme(name: str, key: str) -> None:
    assert told(key, SECTION), f"{name}: README.md does not tell of `{key}`"


def test_a_key_that_is_missing_would_be_seen() -> None:
    assert told("pids", "| `pids` |")
    assert not told("pid", SECTION)
