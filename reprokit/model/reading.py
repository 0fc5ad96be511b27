"""Reading documents, every one of them hostile until it is validated.

The order matters: size, encoding, depth and duplicate keys before anything is decoded; then the typed decoder;
then the digest. `jsonschema` is asked only when the typed decoder has refused, to say where and why.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reprokit.errors import InvalidInput, one_line
from reprokit.model import canonical

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
MAX_PROBLEMS = 10
SCHEMA_VERSION = 1

T = TypeVar("T", bound=msgspec.Struct)
Place = tuple[Any, ...]  # keys and indices from the root of a document
# A string that never ends matches up to the end, so that no input makes the scan start over.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read(path: str | Path, model: type[T]) -> T:
    """The document at `path`, if it is a valid one of type `model`.

    Raises:
        InvalidInput: the file cannot be read, or is no such document; names the file and the place in it.
    """
    return (
        read_any(path, model)
        if "document" in model.__struct_fields__
        else decode(load_json(path), model, str(path))
    )


def read_any(path: str | Path, *models: type[Any]) -> Any:
    """The document at `path`, which says by its key `document` which of `models` it is.

    Raises:
        InvalidInput: as `read`, or a document of another type.
    """
    data = read_bytes(path)
    raw = parse_json(data, str(path))
    return decode(raw, by_type(raw, str(path), models), str(path), data)


def load_any(path: str | Path) -> tuple[str, Any]:
    """Type and raw content of the JSON document at `path`, which says by its key `document` what it is.

    Raises:
        InvalidInput: as `load_json`, or a document of no known type.
    """
    from reprokit.model.schema import DOCUMENTS

    raw = load_json(path)
    models = tuple(model for name, model in DOCUMENTS.items() if name != "config")
    return document_name(by_type(raw, str(path), models)), raw


def by_type(raw: Any, where: str, models: tuple[type[T], ...]) -> type[T]:
    """The one of `models` that a raw document claims to be.

    Raises:
        InvalidInput: it claims to be none of them.
    """
    claimed = raw.get("document") if isinstance(raw, dict) else None
    known = {document_name(model): model for model in models}
    if not isinstance(claimed, str) or claimed not in known:
        expected = " or ".join(f'"{name}"' for name in known)
        found = "none" if claimed is None else excerpt(claimed)
        swapped = (
            ", so BASE and HEAD may be swapped"
            if claimed == "baseline" and expected == '"fingerprint"'
            else ""
        )
        raise InvalidInput(f"{where}: /document: expected {expected}, found {found}{swapped}")
    return known[claimed]


def document_name(model: type[Any]) -> str:
    """What a type of document writes under its key `document`."""
    return "environment" if model.__name__ == "EnvironmentReport" else model.__name__.lower()


def decode(raw: Any, model: type[T], where: str, data: bytes | None = None) -> T:
    """A raw document as `model`, schema, version and digest checked; `data` are the bytes that it was read from.

    Raises:
        InvalidInput: with file, JSON pointer, what was expected and what stood there.
    """
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InvalidInput(
            f"{where}: /schema_version: expected {SCHEMA_VERSION}, found {excerpt(version)}: "
            "it was written by a newer reprokit; upgrade this one"
        )
    try:
        document = msgspec.convert(raw, model)
    except msgspec.ValidationError as error:
        reason = next(explain(raw, document_name(model)), str(error))
        raise InvalidInput(f"{where}: {reason}") from error
    sealed = data is not None and _sealed_as_written(data)
    if not sealed and (problem := digest_problem(raw)):
        raise InvalidInput(f"{where}: {problem}")
    return document


def _sealed_as_written(data: bytes) -> bool:
    """Whether the digests in a document are those of its very bytes, as in every one that is canonical.

    Writing the content anew to take its digest would be most of the time of reading it.
    """
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    approvals = msgspec.json.decode(members.get("approvals", b"[]"), type=list[dict[str, msgspec.Raw]])
    nested = [msgspec.json.decode(one["fingerprint"], type=dict[str, msgspec.Raw]) for one in approvals]
    return all(_own_digest(document) for document in (members, *nested) if "digest" in document)


def _own_digest(members: dict[str, msgspec.Raw]) -> bool:
    content = hashlib.sha256(b"{")
    separator = b""
    for key, value in members.items():
        if key not in canonical.NOT_IN_DIGEST:
            content.update(separator + json.dumps(key).encode() + b":")
            content.update(value)
            separator = b","
    content.update(b"}")
    return bytes(members["digest"]) == f'"sha256:{content.hexdigest()}"'.encode()


def digest_problem(raw: dict[str, Any]) -> str | None:
    """What is wrong with the digests in a raw document: its own and, in a baseline, those of its fingerprints."""
    nested = [
        (f"/approvals/{index}/fingerprint/digest", approval["fingerprint"])
        for index, approval in enumerate(raw.get("approvals", ()))
    ]
    for pointer, part in [*nested, ("/digest", raw)]:
        if "digest" in part and part["digest"] != (actual := canonical.digest(part)):
            return f"{pointer}: the content has digest {actual}, the document says {part['digest']}: it was edited"
    return None


def explain(raw: Any, document: str) -> Iterator[str]:
    """Each violation of a document's schema: JSON pointer, what was expected, what stood there."""
    for path, problem in violations(raw, document):
        yield f"{pointer(path)}: {problem}"


def violations(raw: Any, document: str, most: int = MAX_PROBLEMS) -> Iterator[tuple[Place, str]]:
    """Violations of a document's schema: the path to each, what was expected and what stood there."""
    import jsonschema  # 80 ms, and only for a broken document

    from reprokit.model.schema import schema

    validator = jsonschema.Draft202012Validator(schema(document))
    found = islice(validator.iter_errors(raw), most)  # a hostile document can have millions
    ordered = sorted(found, key=lambda error: [str(part) for part in error.absolute_path])
    yield from dict.fromkeys(_described(_innermost(error)) for error in ordered)


def pointer(path: Place) -> str:
    """A path as a JSON pointer, on one line and of a length that can be read; `/` for the whole document."""
    parts = (one_line(str(part)).replace("~", "~0").replace("/", "~1") for part in path)
    return "".join("/" + (part if len(part) <= 120 else part[:119] + "…") for part in parts) or "/"


def load_json(path: str | Path) -> Any:
    """Plain data from the JSON file at `path`, within the limits and without duplicate keys.

    Raises:
        InvalidInput: unreadable, too large, not UTF-8, not JSON, nested too deep, a key twice, or a NaN token.
    """
    return parse_json(read_bytes(path), str(path))


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`.

    Raises:
        InvalidInput: it is missing, no regular file, unreadable or larger.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise InvalidInput(
                f"{path}: no such file" if not file.exists() else f"{path}: not a regular file"
            )
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise InvalidInput(f"{str(path)!r}: no such file: {error}") from error
    if len(data) > MAX_BYTES:
        raise InvalidInput(f"{path}: larger than {MAX_BYTES // 2**20} MiB, the most that a document may have")
    return data


def parse_json(data: bytes, where: str) -> Any:
    """Plain data from JSON bytes; `where` names them in errors.

    Raises:
        InvalidInput: as `load_json`.
    """
    if not data.strip():
        raise InvalidInput(f"{where}: the file is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}: byte {error.start}: not UTF-8") from error
    if _too_deep(data):
        raise InvalidInput(f"{where}: nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        if "\\u" in text:  # escapes can spell half of a surrogate pair, which no encoder takes
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{where}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where}: a string holds half of a surrogate pair") from error
    except RecursionError as error:
        raise InvalidInput(f"{where}: nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # a duplicate key, a NaN token or a number of more digits than Python reads
        raise InvalidInput(f"{where}: {error}") from error
    return value


def _too_deep(data: bytes) -> bool:
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {excerpt(keys[_first_twin(keys) or 0])} stands twice in one object")
    return result


def _first_twin(keys: list[str]) -> int | None:
    """Position of the first key that stood before, found in one pass."""
    seen: set[str] = set()
    for position, key in enumerate(keys):
        if key in seen:
            return position
        seen.add(key)
    return None


def _refuse_constant(token: str) -> Any:
    raise ValueError(f'{token} is no JSON number; write "float:{token.lower().replace("infinity", "inf")}"')


def _innermost(error: Any) -> Any:
    """Of a union's branches, the failure that lies deepest: the branch that was meant."""
    while error.context:
        error = max(error.context, key=lambda inner: (len(inner.absolute_path), inner.validator != "type"))
    return error


def _described(error: Any) -> tuple[Place, str]:
    path, schema, found = tuple(error.absolute_path), error.schema, error.instance
    if list(error.absolute_schema_path)[-2:-1] == ["propertyNames"]:
        path = (*path, found)
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        unknown = min(set(found) - set(known))
        return path, f"expected only known keys, found {excerpt(unknown)}{nearest(unknown, known)}"
    if error.validator == "required":
        missing = [excerpt(key) for key in schema["required"] if key not in found]
        return path, f"expected the key{'s'[: len(missing) > 1]} {' and '.join(missing)}, found none"
    hint = ""
    if error.validator == "type":
        expected = error.validator_value
        expected = expected if isinstance(expected, str) else " or ".join(expected)
    elif error.validator == "enum":
        expected = " or ".join(excerpt(value) for value in error.validator_value)
        hint = nearest(found, error.validator_value)
    else:
        expected = f"{error.validator} {excerpt(error.validator_value)}"
        if examples := schema.get("examples"):
            expected += f", such as {excerpt(examples[0])}"
    return path, f"expected {expected}, found {excerpt(found)}{hint}"


def nearest(word: Any, known: Iterable[Any]) -> str:
    """`; did you mean …?` where one of `known` is like `word`, else nothing."""
    from difflib import get_close_matches

    words = [one for one in known if isinstance(one, str)]
    near = get_close_matches(word, words, 1) if isinstance(word, str) else []
    return f"; did you mean {excerpt(near[0])}?" if near else ""


def excerpt(value: Any, width: int = 60) -> str:
    """A value on one line and in ASCII, so that a hostile one cannot break the line or the terminal."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list) and len(value) > 8:
        return f"an array of {len(value)} items"
    text = json.dumps(value, default=repr)
    return text if len(text) <= width else text[: width - 1] + "…"
