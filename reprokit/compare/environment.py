"""The diff of two environments: changed fields, ranked by whether they can explain which stages moved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from reprokit.compare.rules import Rule, find, matches
from reprokit.model.comparison import FieldChange
from reprokit.model.fingerprint import Fingerprint

SECTIONS = (
    "seeds", "variables", "packages", "torch", "numpy", "libraries",
    "driver", "gpus", "cpu", "system", "python", "source",
)  # fmt: skip
# Entries of these come and go as a whole, which is one change; the field that names such an entry to a reader.
COLLECTIONS = {"libraries": ".path", "gpus": ".name"}
_ENTRY = re.compile(r'gpus\[\d+\]|libraries(?:\.[A-Za-z0-9_-]+|\["(?:[^"\\]|\\.)*"\])')
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_RELEVANCE = ("likely", "possible", "unlikely")
Relevance = Literal["likely", "possible", "unlikely"]


@dataclass(frozen=True)
class Moved:
    """A stage that moved of its own accord: its operator class and the library that ran it."""

    operator: str
    library: Literal["numpy", "torch"]


def moved(operator: str, stage: str) -> Moved:
    """Evidence of one stage by its operator class and name."""
    return Moved(operator, "numpy" if "numpy" in stage else "torch")


def compare_environment(base: Fingerprint, head: Fingerprint, evidence: Iterable[Moved]) -> list[FieldChange]:
    """Every changed field, the most relevant first.

    likely: known to move one of the classes in `evidence`; possible: can change numbers, or nothing is known of it;
    unlikely: known to change none.
    """
    old, new = _whole_entries(flatten(base), flatten(head))
    changed = [field for field in {**old, **new} if not _equal(old.get(field), new.get(field))]
    evidence = set(evidence)
    places = {field: find(field)[0] for field in changed}
    external = {field: _external(field, changed) for field in changed}
    result = []
    for field in changed:
        relevance, reason = _relevance(find(field)[1], evidence, head.probe.device)
        result.append(
            FieldChange(
                field=field,
                base=old.get(field),
                head=new.get(field),
                relevance=relevance,
                external=external[field],
                reason=reason,
            )
        )
    return sorted(
        result, key=lambda change: (_RELEVANCE.index(change.relevance), places[change.field], change.field)
    )


def flatten(fingerprint: Fingerprint) -> dict[str, Any]:
    """Value by dotted path of every field that is set."""
    document = {section: msgspec.to_builtins(getattr(fingerprint, section)) for section in SECTIONS}
    fields = {path: value for section in SECTIONS for path, value in _leaves(document[section], section)}
    fields["run.other_variables.sha256"] = fingerprint.run.other_variables.sha256
    return fields


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, path + _step(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif value is not None and not (path in COLLECTIONS and not value):
        yield path, value


def _step(key: str) -> str:
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"


def _whole_entries(base: dict[str, Any], head: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both sides with each library or GPU that only one of them has as a single field, which holds what names it."""
    old, new = ({_entry(field) for field in side} for side in (base, head))
    alone = (old ^ new) - {None}
    return _collapsed(base, alone), _collapsed(head, alone)


def _collapsed(fields: dict[str, Any], alone: set[str | None]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field, value in fields.items():
        entry = _entry(field)
        if entry is None or entry not in alone:
            result[field] = value
        elif field == entry + COLLECTIONS[entry.partition("[")[0].partition(".")[0]]:
            result[entry] = value
        else:
            result.setdefault(entry, "present")
    return result


def _entry(field: str) -> str | None:
    """The library or GPU that a field belongs to: `gpus[0]` of `gpus[0].name`."""
    found = _ENTRY.match(field)
    return found[0] if found else None


def _equal(base: Any, head: Any) -> bool:
    return type(base) is type(head) and bool(base == head)


def _external(field: str, changed: list[str]) -> bool:
    """Whether a field is the machine's: by its rule, or because all it follows from are."""
    rule = find(field)[1]
    if rule is None or rule.external or not rule.causes:
        return rule is not None and rule.external
    causes = [
        other
        for other in changed
        if other != field and any(matches(other, pattern) for pattern in rule.causes)
    ]
    return bool(causes) and all(_external(cause, changed) for cause in causes)


def _relevance(rule: Rule | None, evidence: set[Moved], device: str) -> tuple[Relevance, str]:
    if rule is None:
        return "possible", "nothing is known of this field"
    if rule.harmless:
        return "unlikely", rule.evidence
    if not rule.operators:
        return "possible", rule.evidence
    if rule.device is not None and rule.device != device:
        return "possible", f"{rule.evidence}; this probe ran on the {device}"
    hit = sorted(
        {
            seen.operator
            for seen in evidence
            if seen.operator in rule.operators and rule.library in (None, seen.library)
        }
    )
    if hit:
        return "likely", f"{rule.evidence}; {', '.join(hit)} moved"
    return "possible", f"{rule.evidence}; none of what it is known to move did"
