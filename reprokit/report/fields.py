"""What each field of the environment can move, and on what evidence: the page of the documentation.

It is made of the very rules by which a comparison ranks changed fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from reprokit.compare.rules import ANY, RULES, Rule
from reprokit.report.table import markdown_table

_SECTIONS = {
    "seeds": "parameters of the experiment, apart from the environment",
    "variables": "requested: what the process was told",
    "packages": "installed",
    "torch": "effective: what torch says of itself",
    "numpy": "effective: what NumPy says of itself",
    "libraries": "loaded: what the process had mapped when the operators had run",
    "driver": "the GPU's driver and the CUDA libraries",
    "gpus": "the GPUs that the process saw",
    "cpu": "the processor",
    "system": "the operating system and its limits",
    "python": "the interpreter",
    "image": "the container image",
    "source": "the code that measured",
    "run": "of one run alone; never part of a digest",
}


def page() -> str:
    """The whole page, in Markdown."""
    blocks = [
        "# What each field can move",
        "Written by `bin/generate-docs` from the rules of the comparator; do not edit by hand. "
        f"{len(RULES)} rules; `*` and `?` stand for anything, and the first that fits a field applies. "
        "A changed field is **likely** the cause where a stage of a class that it moves did move, **possible** "
        "where it can change numbers or nothing is known of it, and **unlikely** where it is known to change none. "
        "Within a section the order is the order of suspicion: what a person sets comes before what follows from it. "
        "A field that stands in no row is never hidden: it is shown as possible.",
    ]
    order = list(_SECTIONS)
    by_section = sorted(
        RULES, key=lambda rule: order.index(_section(rule))
    )  # stable: keeps the order of suspicion
    for section, rules in groupby(by_section, key=_section):
        blocks += [f"## {section}", f"{_SECTIONS[section].capitalize()}.", _table(list(rules))]
    return "\n\n".join(blocks) + "\n"


def _section(rule: Rule) -> str:
    return next(name for name in _SECTIONS if rule.pattern.startswith(name))


def _table(rules: Sequence[Rule]) -> str:
    rows = [(f"`{rule.pattern}`", ", ".join(_moves(rule)), _where(rule), rule.evidence) for rule in rules]
    return markdown_table(("field", "can move", "where", "why"), rows)


def _moves(rule: Rule) -> Iterator[str]:
    if rule.harmless:
        yield "nothing"
    elif set(rule.operators) >= set(ANY):
        yield "every class"
    elif rule.operators:
        yield from rule.operators
    elif not rule.compiles:
        yield "not known"
    if rule.compiles:
        yield "what is compiled at run time or ran another kernel"


def _where(rule: Rule) -> str:
    places = [
        rule.library and f"stages in {rule.library}",
        rule.device and "a GPU",
        rule.external and "the machine's",
    ]
    return "; ".join(place for place in places if place) or "–"
