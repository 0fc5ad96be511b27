"""The schemas in schemas/ are the models, closed and described down to the last key."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reprokit.model.schema import DIALECT, DOCUMENTS, schema

ROOT = Path(__file__).parents[2]
documents = pytest.mark.parametrize("document", DOCUMENTS)


def objects(node: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in a schema that lists its keys, with a JSON pointer."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            yield path, node
        for key, value in node.items():
            yield from objects(value, f"{path}/{key}")
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from objects(value, f"{path}/{index}")


@documents
def test_the_file_equals_the_model(document: str) -> None:
    text = (ROOT / "schemas" / f"{document}.schema.json").read_text()
    assert text == json.dumps(schema(document), indent=2) + "\n", "run make schemas"


def test_no_file_is_left_over() -> None:
    assert {path.name for path in (ROOT / "schemas").iterdir()} == {
        f"{name}.schema.json" for name in DOCUMENTS
    }


@documents
def test_it_is_a_valid_schema_with_an_identity(document: str) -> None:
    made = schema(document)
    assert made["$schema"] == DIALECT == Draft202012Validator.META_SCHEMA["$id"]
    assert made["$id"] == f"urn:reprokit:schema:{document}:1"
    Draft202012Validator.check_schema(made)


@documents
def test_every_reference_leads_somewhere(document: str) -> None:
    made = schema(document)
    wanted = {word for word in json.dumps(made).split('"') if word.startswith("#/")}
    assert wanted == {f"#/$defs/{name}" for name in made["$defs"]}


@documents
def test_every_object_is_closed(document: str) -> None:
    found = dict(objects(schema(document)))
    assert "#" in found
    assert [path for path, node in found.items() if node.get("additionalProperties") is not False] == []


@documents
def test_every_key_is_described(document: str) -> None:
    missing = [
        f"{path}/properties/{key}"
        for path, node in objects(schema(document))
        for key, value in node["properties"].items()
        if not value.get("description", "").endswith((".", "`"))
    ]
    assert missing == []


def test_check_names_what_is_stale(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "generate-schemas"
    script.write_bytes((ROOT / "bin" / "generate-schemas").read_bytes())
    (tmp_path / "reprokit").symlink_to(ROOT / "reprokit")

    def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)

    assert generate("--check").returncode == 1
    assert generate().returncode == 0
    assert generate("--check").returncode == 0
    (tmp_path / "schemas" / "baseline.schema.json").write_text("{}")
    checked = generate("--check")
    assert checked.returncode == 1
    assert checked.stderr == "schemas/baseline.schema.json is stale: run make schemas\n"
