"""The words that every rendering of a comparison shares."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reprokit.model import trace
from reprokit.model.comparison import Comparison, MetricComparison, Side, StageComparison
from reprokit.model.trace import Number

if TYPE_CHECKING:
    from reprokit.model.fingerprint import Fingerprint

MOST_FIELDS = 10
MOST_STAGES = 10
_LONGEST_PATH = 200
MOST_REASONS = 3
SIGNS = {"holds": "✓", "drifted": "✗", "no_baseline": "?", "invalid": "!"}
STATES = {"holds": "holds", "drifted": "drifted", "no_baseline": "no baseline", "invalid": "invalid"}
CAUSED = {
    "yes": "this change caused it",
    "no": "this change cannot have caused it",
    "possible": "this change may have caused it",
}
MARKS = {"cause": "✗", "differs": "≠", "agrees": "✓", "unknown": "?"}
T = TypeVar("T")


def headline(comparison: Comparison) -> str:
    """State, and whether the change under review can be the cause."""
    verdict, found = comparison.verdict, comparison.diagnosis
    words = f"{SIGNS[verdict.state]} {STATES[verdict.state]}"
    if verdict.state == "no_baseline":
        return f"{words}: nothing is approved for this {_unknown(comparison.base)} yet"
    if verdict.state == "invalid":
        return f"{words}: the two cannot be compared"
    if verdict.state == "holds":
        if found.class_ is None:
            return words
        if verdict.level == verdict.required:
            return f"{words} at level {verdict.level}, though not every bit"
        return f"{words}: {verdict.required} is required, and even {verdict.level} agrees"
    return words if found.class_ is None else f"{words}: {CAUSED[found.caused_by_change]}"


def sentence(comparison: Comparison) -> str:
    """The verdict in a sentence."""
    verdict = comparison.verdict
    if not compared(comparison):
        return f"Level {verdict.required} is required; nothing was compared."
    level = f"level {verdict.level} holds" if verdict.level != "none" else "no level holds"
    return f"Level {verdict.required} is required, {level}. {_differing(comparison)}, {_against(comparison.base)}."


def compared(comparison: Comparison) -> bool:
    """Whether numbers were held against numbers, so that there are levels to show."""
    base = comparison.base
    return comparison.verdict.state != "invalid" and (
        base.source == "fingerprint" or base.approval is not None
    )


def _unknown(base: Side) -> str:
    """What nothing is approved for."""
    if base.approval is not None or base.source == "fingerprint":
        return "stage"
    return "hardware" if base.class_key is None else "way of running"


def _differing(comparison: Comparison) -> str:
    """How many stages and metrics differ, the blind stages among them apart."""
    kinds = [stage.difference for stage in comparison.stages]
    blind = kinds.count("blind")
    metrics = sum(not metric.equal and metric.state != "new" for metric in comparison.metrics)
    words = f"{len(kinds) - kinds.count(None) - blind} of {len(kinds)} stages"
    words += f" and {metrics} of {len(comparison.metrics)} metrics differ" if metrics else " differ"
    return f"{words}, and {blind} blind, which proves nothing" if blind else words


def _against(base: Side) -> str:
    if base.source == "fingerprint":
        return "compared with one fingerprint"
    which = "which matches" if base.exact else "the nearest one, as none matches"
    return f"compared with approval {base.approval} of cell {base.cell}, {which}"


def notable_stages(comparison: Comparison) -> list[StageComparison]:
    """Stages that differ: the first, then kernels, then what moved of its own accord, then what follows."""
    first = comparison.diagnosis.first_stage
    found = [stage for stage in comparison.stages if stage.difference is not None or stage.name == first]
    return sorted(
        found, key=lambda stage: (stage.name != first, not stage.name.startswith("kernel."), stage.follows)
    )


def split(items: Sequence[T], most: int) -> tuple[Sequence[T], int]:
    """The first `most` items and how many more there are."""
    return items[:most], max(len(items) - most, 0)


def error_text(stage: StageComparison) -> str:
    """How far a stage is off, or why that is not known."""
    if stage.error is None:
        known = {"other_version": "not compared", "gone": "gone"}
        return known.get(stage.state, "unknown" if stage.equal is False else "")
    error = stage.error
    if error.share is not None:
        return f"{percent(error.share)} of the codes flipped"
    sign = "" if error.uncertainty == 0 else f" ± {percent(error.uncertainty, 1)}"
    return figure(error.relative) + sign


def allowed_text(stage: StageComparison) -> str:
    """What the tolerance is and whether the stage keeps it."""
    if stage.error is None:
        return stage.state if stage.state != "ok" else "must be equal"
    if stage.error.tolerance is None:
        return "✗ must be equal"
    allowed = stage.error.tolerance
    shown = figure(allowed) if stage.error.share is None else percent(allowed)
    return f"{'✓ within' if stage.error.within else '✗ beyond'} {shown}"


def band_text(metric: MetricComparison) -> str:
    """The band of a metric."""
    if metric.low is None and metric.high is None:
        return "" if metric.state in ("new", "missing") else "not calibrated"
    return f"≥ {figure(metric.low, 6)}" if metric.low is not None else f"≤ {figure(metric.high, 6)}"


def figure(value: Number | None, digits: int = 2) -> str:
    """A number for reading."""
    if value is None:
        return "–"
    return trace.figure(value, digits)


def percent(value: Number, digits: int = 3) -> str:
    """A share for reading."""
    return f"{trace.figure(value if isinstance(value, str) else 100 * value, digits)} %"


@dataclass(frozen=True)
class Origin:
    """Where the head of a comparison stands and how it was measured: what the suggested commands are made of.

    `head` is its file and `measured` what stands in it; `folder` is that of the baselines, if unusual. `command` is the
    `reprokit ci …` that measured it, and `fetch` the command that brings the file to whoever reads the report.
    """

    head: str = "HEAD.json"
    measured: Fingerprint | None = None
    folder: str | None = None
    command: str | None = None
    fetch: str | None = None


def next_steps(comparison: Comparison, origin: Origin) -> list[tuple[str, list[str]]]:
    """What to do and the commands for it.

    What `reprokit baseline approve` refuses is not suggested, nor approving what another seed gave.
    """
    state, file = comparison.verdict.state, _argument(origin.head, "HEAD.json")
    fetch = [origin.fetch] if origin.fetch else []
    seeds = next((change for change in comparison.environment if change.field == "seeds.base"), None)
    if state in ("holds", "invalid"):
        return []
    if seeds is not None:
        if origin.command:
            return [(f"The seeds differ: write `seed: {seeds.base}` at the cell", [])]
        _, commands = _measure(origin, seeds.base)
        return [("The seeds differ: measure with that of the base", commands)]
    steps = []
    if state == "drifted":
        again, commands = _measure(origin)
        where = "on the same runner and " if fetch else ""
        words = (
            f"Measure again, {where}set up exactly as for {origin.head}: if that differs too, the run does not repeat "
            "itself, and no machine is to blame"
        )
        steps.append((words, [*fetch, *commands, f"reprokit compare {file} {again}"]))
    if comparison.unapprovable is None:
        words = (
            "If the new numbers are right, approve them"
            if state == "drifted"
            else f"If the numbers of {origin.head} are right, approve them"
        )
        approve = f"reprokit baseline approve {file} --cell {comparison.base.cell or 'NAME'} --reason WHY"
        folder = f" --folder {_argument(origin.folder, 'FOLDER')}" if origin.folder else ""
        steps.append((words, [*fetch, approve + folder]))
    return steps


def _measure(origin: Origin, seed: Any = None) -> tuple[str, list[str]]:
    """Where the commands write that measure as before, and these commands; with another seed where one is given."""
    if origin.command:
        folder = "again" if Path(origin.head).parent.name != "again" else "once-more"
        return f"{folder}/{Path(origin.head).name}", [f"{origin.command} --output {folder}"]
    output = "again.json" if Path(origin.head).name != "again.json" else "once-more.json"
    command, like = f"reprokit probe -o {output}", origin.measured
    if like is not None:
        command += f" --profile {like.probe.profile}" if like.probe.profile != "full" else ""
        command += f" --device {like.probe.device}" if like.probe.device != "cpu" else ""
        command += f" --mode {like.probe.mode}" if like.probe.mode != "default" else ""
        seed = like.seeds.base or None if seed is None else seed
    return output, [command if seed is None else f"{command} --seed {seed}"]


def _argument(path: str, placeholder: str) -> str:
    """`path` for a command line; the placeholder where rendering would turn it into another file's name."""
    if not path.isprintable() or "`" in path or len(path) > _LONGEST_PATH:
        return placeholder
    return shlex.quote(f"./{path}" if path.startswith("-") else path)
