"""The diff of two environments: changed fields, ranked by whether they can explain which stages moved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from reprokit.compare.rules import RULES, Rule, find, matches
from reprokit.model.comparison import FieldChange
from reprokit.model.fingerprint import Fingerprint

SECTIONS = (
    "seeds", "variables", "packages", "torch", "numpy", "libraries",
    "driver", "gpus", "cpu", "system", "python", "image", "source",
)  # fmt: skip
# Entries of these come and go as a whole, which is one change; the field that names such an entry to a reader.
COLLECTIONS = {"libraries": ".path", "gpus": ".name"}
_ENTRY = re.compile(r'gpus\[\d+\]|libraries(?:\.[A-Za-z0-9_-]+|\["(?:[^"\\]|\\.)*"\])')
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_RELEVANCE = ("likely", "possible", "unlikely")
Relevance = Literal["likely", "possible", "unlikely"]


@dataclass(frozen=True)
class Moved:
    """A stage that moved of its own accord: its operator class and the library that ran it.

    `compiled`: its kernel was compiled at run time, or is another one than before.
    """

    operator: str
    library: Literal["numpy", "torch"]
    compiled: bool = False


def moved(operator: str, stage: str, other_kernels: bool = False) -> Moved:
    """Evidence of one stage by its operator class and name, and by whether the two sides ran other kernels."""
    compiled = other_kernels or stage.startswith("kernel.compiled.")
    return Moved(operator, "numpy" if "numpy" in stage else "torch", compiled)


def compare_environment(base: Fingerprint, head: Fingerprint, evidence: Iterable[Moved]) -> list[FieldChange]:
    """Every changed field, the most relevant first.

    likely: known to move one of the classes in `evidence`; possible: can change numbers, or nothing is known of it;
    unlikely: known to change none.
    """
    old, new = _whole_entries(flatten(base), flatten(head))
    changed = [field for field in {**old, **new} if not _equal(old.get(field), new.get(field))]
    if base.run.detail != head.run.detail:
        changed = [
            field for field in changed if not _depends_on_detail(field, old.get(field), new.get(field))
        ]
    evidence = set(evidence)
    found = {field: find(field) for field in changed}
    causes = _changed_causes(found)
    result = []
    for field, (place, rule) in found.items():
        relevance, reason = _relevance(rule, evidence, head.probe.device)
        # what is known to move other classes explains less than what nobody knows
        powerless = relevance == "possible" and rule is not None and bool(rule.operators or rule.compiles)
        change = FieldChange(
            field=field,
            base=old.get(field),
            head=new.get(field),
            relevance=relevance,
            external=_external(place, causes),
            reason=reason,
        )
        # what follows from another changed field stands behind it
        rank = (_RELEVANCE.index(relevance), powerless, bool(causes.get(place)), place, field)
        result.append((rank, change))
    return [change for _, change in sorted(result, key=lambda item: item[0])]


def flatten(fingerprint: Fingerprint) -> dict[str, Any]:
    """Value by dotted path of every field that is set."""
    document = {section: msgspec.to_builtins(getattr(fingerprint, section)) for section in SECTIONS}
    fields = {path: value for section in SECTIONS for path, value in _leaves(document[section], section)}
    fields["run.other_variables.sha256"] = fingerprint.run.other_variables.sha256
    fields |= _leaves(fingerprint.run.other_variables.values, "run.other_variables.values")
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


def _depends_on_detail(field: str, base: Any, head: Any) -> bool:
    """Whether a difference can come from one side alone having been recorded with `--detail full`."""
    if field.startswith("packages"):
        return base is None or head is None
    if field.startswith("run.other_variables.values"):
        return True
    if field.startswith("variables"):
        return any(isinstance(value, str) and value.startswith("sha256:") for value in (base, head))
    return field.endswith((".path", "_path", ".uuid", ".pci_bus_id", ".vbios"))


def _changed_causes(found: dict[str, tuple[int, Rule | None]]) -> dict[int, set[int]]:
    """By the place of each rule whose field changed: the places of the changed fields that it follows from.

    Each pattern is held against each field once, however many fields follow from it.
    """
    matching: dict[str, set[int]] = {}
    result = {}
    for place in {place for place, _ in found.values() if place < len(RULES)}:
        for pattern in RULES[place].causes:
            if pattern not in matching:
                matching[pattern] = {found[field][0] for field in found if matches(field, pattern)}
        result[place] = {cause for pattern in RULES[place].causes for cause in matching[pattern]}
    return result


def _external(place: int, causes: dict[int, set[int]]) -> bool:
    """Whether a rule's fields are the machine's: by the rule, or because all they follow from are."""
    if place == len(RULES):
        return False
    if RULES[place].external or not causes[place]:
        return RULES[place].external
    return all(_external(cause, causes) for cause in causes[place])


def _relevance(rule: Rule | None, evidence: set[Moved], device: str) -> tuple[Relevance, str]:
    if rule is None:
        return "possible", "nothing is known of this field"
    if rule.device is not None and rule.device != device:
        return "unlikely", f"{rule.evidence}; this probe ran on the {device}"
    if rule.harmless:
        return "unlikely", rule.evidence
    if not rule.operators and not rule.compiles:
        return "possible", rule.evidence
    fitting = [seen for seen in evidence if rule.library in (None, seen.library)]
    if hit := sorted({seen.operator for seen in fitting if seen.operator in rule.operators}):
        return "likely", f"{rule.evidence}; {', '.join(hit)} moved"
    if rule.compiles and any(seen.compiled for seen in fitting):
        return "likely", f"{rule.evidence}; a compiled stage moved, or one that ran another kernel"
    return "possible", f"{rule.evidence}; none of what it is known to move did"
