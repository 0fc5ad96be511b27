"""Stages as they are declared by a probe, and the recorder that runs them and keeps their trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from reprokit.probe import generators
from reprokit.probe.hashing import Array, dtype_name, sha256
from reprokit.probe.sketch import sketch


class Unavailable(Exception):
    """This machine cannot run a stage; the message is its reason and must name nothing private."""


WITHIN, LOADED, FRESH = "within one process", "under load", "in a fresh process"
NO_RESULT = "no result"  # of a stage that had one before
# how torch refuses an operator that has no deterministic form, where only such are allowed
_REFUSED = "does not have a deterministic implementation"


class StageFailed(Exception):
    """A stage raised what its author did not foresee; the message names both."""


@dataclass(frozen=True)
class Control:
    """What must move a sensitive stage, and the result under that change."""

    change: str
    compute: Callable[[], Array]


@dataclass(frozen=True)
class Twin:
    """Another stage whose result this one's equals element by element where nothing but the mathematics counts."""

    name: str
    compute: Callable[[], Array]


@dataclass(frozen=True)
class Stage:
    """One step of a probe: how to compute it and what is known of the result.

    `bound` takes the result and returns its largest error against a float64 reference in units of the
    a-priori bound. `answer` is the hash that every correct machine gives; a stage with one is `invariant`.
    `races` names the operator in it that torch documents as nondeterministic on this device. `twin` is what the
    result is held against element by element, each of the two broadcast to the other.
    """

    name: str
    operator: str
    compute: Callable[[], Array]
    version: int = 1
    inputs: tuple[str, ...] = ()
    invariant: bool = False
    answer: str | None = None
    bound: Callable[[Array], float] | None = None
    control: Control | None = None
    races: str | None = None
    twin: Twin | None = None


class Recorder:
    """Runs stages again and again: the first run is recorded in full, each further one by its hash.

    Two stages of one name are a mistake of the probe's author and raise ValueError.
    """

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self._hashes: dict[str, list[tuple[str, str]]] = {}  # by stage: where it ran, and its hash

    def run(self, stages: Iterable[Stage]) -> None:
        """Compute, in order, stages seen for the first time and record them."""
        for stage in stages:
            if stage.name in self.records:
                raise ValueError(f"two stages are called {stage.name}")
            self.records[stage.name] = record = _blank(stage)
            try:
                result = _computed(stage)
            except Unavailable as error:
                record.update(state="unavailable", reason=str(error))
                continue
            record.update(dtype=dtype_name(result), shape=list(result.shape), sha256=sha256(result))
            if record["sha256"] != stage.answer:  # of a known answer there is nothing more to know
                record["sketch"] = sketch(result)
            self._hashes[stage.name] = [(WITHIN, record["sha256"])]
            if stage.bound is not None:
                ratio = stage.bound(result)
                record["bound"] = {"ratio": float(f"{ratio:.2e}"), "holds": ratio <= 1.0}
            if stage.twin is not None:
                record["invariance"] = _held_against(stage.twin, result)
            if stage.control is not None:
                with generators.kept():  # what a control draws must not count as drawn by its part
                    _try_control(stage, result, record)

    def repeat(self, stages: Iterable[Stage], where: str = WITHIN) -> None:
        """Compute stages once more and keep their hashes."""
        for stage in stages:
            if stage.name in self._hashes:
                self._hashes[stage.name].append((where, _hash_or_none(stage) or NO_RESULT))

    def add_fresh(self, hashes: dict[str, str]) -> None:
        """Take the hashes that a fresh process gave: a stage that it lacks counts as another result."""
        for name, known in self._hashes.items():
            known.append((FRESH, hashes.get(name, NO_RESULT)))

    def add_kernels(self, names: dict[str, list[str]]) -> None:
        """Take the names of the GPU kernels that a profiled process saw; a stage without any gets no such key."""
        for name, kernels in names.items():
            if kernels and name in self.records:
                self.records[name]["kernels"] = kernels

    def trace(self) -> list[dict[str, Any]]:
        """The records in order, those whose repeats differ marked as unstable."""
        for name, known in self._hashes.items():
            if (distinct := len({found for _, found in known})) > 1:
                first = next(where for where, found in known if found != known[0][1])
                self.records[name].update(
                    state="unstable",
                    reason=f"{distinct} different results in {len(known)} runs, first {first}",
                )
        return list(self.records.values())


def hashes(stages: Iterable[Stage]) -> dict[str, str]:
    """Name and hash of each stage that this machine can run: what a fresh process reports."""
    found = ((stage.name, _hash_or_none(stage)) for stage in stages)
    return {name: result for name, result in found if result is not None}


def _hash_or_none(stage: Stage) -> str | None:
    """The hash of a stage; None where this machine cannot run it, the reason of which its record states."""
    try:
        return sha256(_computed(stage))
    except Unavailable:
        return None


def _computed(stage: Stage) -> Array:
    try:
        return stage.compute()
    except RuntimeError as error:
        if _REFUSED in str(error):
            raise Unavailable(
                f"torch has no deterministic form of {stage.races or 'an operator in it'}"
            ) from error
        raise StageFailed(f"stage {stage.name}: {type(error).__name__}: {error}") from error
    except (TypeError, ValueError) as error:
        raise StageFailed(f"stage {stage.name}: {type(error).__name__}: {error}") from error


def _blank(stage: Stage) -> dict[str, Any]:
    if stage.invariant and stage.answer is None:
        raise ValueError(f"stage {stage.name} is invariant and has no known answer: run bin/generate-answers")
    races = {} if stage.races is None else {"races": stage.races}
    return {
        "name": stage.name,
        "version": stage.version,
        "operator": stage.operator,
        "kind": "invariant" if stage.invariant else "sensitive",
        "state": "ok",
        "reason": None,
        "inputs": list(stage.inputs),
        "dtype": None,
        "shape": None,
        "sha256": None,
        "expected": stage.answer,
        "sketch": None,
        "bound": None,
        "control": None,
        **races,
    }


def _held_against(twin: Twin, result: Array) -> dict[str, Any]:
    """Whether a result is its twin's, and the largest absolute difference of their elements."""
    ours, theirs = (torch.as_tensor(array).double().cpu() for array in (result, twin.compute()))
    largest = float((ours - theirs).abs().max())
    return {"reference": twin.name, "equal": bool((ours == theirs).all()), "largest": largest}


def _try_control(stage: Stage, result: Array, record: dict[str, Any]) -> None:
    assert stage.control is not None
    changed = stage.control.compute()
    moved = sha256(changed) != record["sha256"]
    flipped = int((changed != result).sum()) if stage.operator == "quantize" else None
    record["control"] = {"change": stage.control.change, "moved": moved, "flipped": flipped}
    if not moved:
        record.update(state="blind", reason=f"did not move under its control: {stage.control.change}")
