"""What a probe measures, stage by stage, and what can move it: for the terminal and for the documentation.

Both are made of what the probe says of itself (`python -m reprokit.probe --list`) and of the rules by which a
comparison ranks changed fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from reprokit.compare.environment import moved
from reprokit.compare.rules import Rule, movers
from reprokit.compare.stages import SEEDED
from reprokit.report.table import markdown_table, table

_MOST = 3
ANYTHING = 12  # a field that can move so many classes of operators says little of any of them


@dataclass(frozen=True)
class Listed:
    """What is known of a stage before it runs."""

    part: str
    name: str
    kind: str
    operator: str
    version: int
    control: str | None
    races: str | None
    about: str

    def moved_by(self, device: str) -> list[str]:
        """Patterns of the fields that can move it, the most telling first."""
        if self.kind == "invariant":
            return []
        seen = moved(self.operator, self.name)
        rules = movers(self.operator, seen.library, device, seen.compiled)
        special = [
            rule.pattern
            for rule in rules
            if len(rule.operators) < ANYTHING and rule.pattern != "seeds.metrics"
        ]
        general = [rule.pattern for rule in rules if len(rule.operators) >= ANYTHING]
        seed = ["seeds.base"] if self.name.startswith(SEEDED) else []
        rest = [pattern for pattern in (*special, *general) if pattern != "seeds.base"]
        return [*seed, *rest]


def text(stages: Sequence[Listed], device: str) -> Iterator[str]:
    """A line a stage, by part."""
    rows = []
    for stage in stages:
        by = stage.moved_by(device)
        more = f" +{len(by) - _MOST}" if len(by) > _MOST else ""
        what = ", ".join(by[:_MOST]) + more if by else "nothing: a known answer"
        rows.append((stage.name, stage.kind, stage.operator, str(stage.version), what))
    yield from table(("stage", "kind", "class", "version", "can be moved by"), rows)


def markdown(stages: Sequence[Listed], parts: dict[str, str], device: str) -> str:
    """The page of the documentation."""
    blocks = [
        "# What the probe measures",
        "Written by `bin/generate-docs` from what `reprokit probe --list` tells; do not edit by hand. "
        f"{len(stages)} stages on a {device.upper() if device == 'cpu' else 'GPU'}, profile full. "
        "A stage of kind `invariant` has a known answer and moves for nobody; a `sensitive` one is moved by its "
        "control on every machine, or is shown as `blind`. A stage that is new is never held against a baseline that "
        "lacks it; one whose version was raised needs approval again, and only that one.",
    ]
    for part, group in groupby(stages, key=lambda stage: stage.part):
        blocks += [f"## {part}", parts[part]]
        for about, same in groupby(group, key=lambda stage: stage.about):
            blocks += [f"**Catches** {about}.", _table(list(same))]
    blocks += ["## What can move an operator class", *_movers(stages, device)]
    return "\n\n".join(blocks) + "\n"


def _table(stages: Sequence[Listed]) -> str:
    rows = []
    for stage in stages:
        control = stage.control or "–"
        control += f"; torch documents {stage.races} as nondeterministic" if stage.races else ""
        rows.append((f"`{stage.name}`", stage.kind, stage.operator, str(stage.version), control))
    return markdown_table(("stage", "kind", "class", "version", "control"), rows)


def _movers(stages: Sequence[Listed], device: str) -> Iterator[str]:
    yield (
        "Fields of a fingerprint (`*` stands for anything), in the order of suspicion. A changed field that is known "
        "to move what did move is ranked first in a comparison."
    )
    found = {
        operator: list(
            dict.fromkeys([*movers(operator, "torch", device), *movers(operator, "numpy", device)])
        )
        for operator in sorted({stage.operator for stage in stages if stage.kind == "sensitive"})
    }
    everything = list(dict.fromkeys(rule for rules in found.values() for rule in rules if _general(rule)))
    yield "### every class"
    yield _rules(everything)
    for operator, rules in found.items():
        if special := [rule for rule in rules if not _general(rule)]:
            yield f"### {operator}"
            yield _rules(special)


def _general(rule: Rule) -> bool:
    return len(rule.operators) >= ANYTHING


def _rules(rules: Sequence[Rule]) -> str:
    rows = [(f"`{rule.pattern}`", rule.library or "any", rule.evidence) for rule in rules]
    return markdown_table(("field", "library", "why"), rows)
