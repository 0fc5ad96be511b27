"""JSON Schemas of every document, made from the typed models so that there is one source of truth."""

from __future__ import annotations

from typing import Any

import msgspec

from reprokit.model.baseline import Baseline
from reprokit.model.comparison import Comparison
from reprokit.model.config import Config
from reprokit.model.environment import EnvironmentReport
from reprokit.model.fingerprint import Fingerprint

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "fingerprint": Fingerprint,
    "baseline": Baseline,
    "comparison": Comparison,
    "environment": EnvironmentReport,
    "config": Config,
}


def schema(document: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one type of document, closed against unknown keys.

    Raises:
        KeyError: `document` is no type of document.
    """
    (root,), definitions = msgspec.json.schema_components(
        [DOCUMENTS[document]], ref_template="#/$defs/{name}"
    )
    name = root["$ref"].removeprefix("#/$defs/")
    return {
        "$schema": DIALECT,
        "$id": f"urn:reprokit:schema:{document}:1",
        **definitions.pop(name),
        "$defs": dict(sorted(definitions.items())),
    }
