"""The cells of a configuration: read, checked, and a cell with several values for a key taken apart into many."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from reprokit.errors import InvalidInput
from reprokit.model import reading
from reprokit.model.config import MOST_CELLS, Cell, Config, Image, Images, Limits
from reprokit.model.reading import Place, excerpt, nearest
from reprokit.model.yaml_reading import Text

EXAMPLE = "version: 1 and, on the next line, cells: [{name: cpu, python: python3}]"
_LONGEST_NAME = 120
_MOST_COMBINATIONS = 4096
_MOST_PROBLEMS = 1000
_NOT_AXES = ("name", "matrix")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # no file names on Windows
_DECIDE_WHAT_RUNS = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP")
Problem = tuple[Place, str]


def read_config(path: str | Path, images: Collection[str] = ()) -> Config:
    """The configuration at `path`; `images` are the names of those that it need not define.

    Raises:
        InvalidInput: it is missing or wrong; with file, line, column and, of a key, the nearest valid one.
    """
    if not Path(path).exists():
        raise InvalidInput(f"{path}: no such file; the least that it says is {EXAMPLE}")
    text = Text(path)
    found = problems(text, images)
    if found:
        more = f" (and {len(found) - 1} more: reprokit validate {path})" if len(found) > 1 else ""
        error = text.error(*found[0])
        raise InvalidInput(f"{error}{more}")
    config: Config = msgspec.convert(text.data, Config)
    return config


def read_images(path: str | Path) -> Images:
    """The list of images at `path`.

    Raises:
        InvalidInput: as `read_config`.
    """
    text = Text(path)
    try:
        images: Images = msgspec.convert(text.data, Images)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: {error}") from error
    for name, image in images.images.items():
        for place, problem in _image_problems(image):
            raise text.error(("images", name, *place), problem)
    return images


def problems(text: Text, images: Collection[str] = ()) -> list[Problem]:
    """What is wrong with a configuration, in its order: by its schema or, where that is kept, by its meaning."""
    try:
        config = msgspec.convert(text.data, Config)
    except msgspec.ValidationError as error:
        found = list(_violations(text.data)) or [_stricter(error)]
    else:
        found = list(contradictions(config, images))
    # the combinations of one matrix can share a problem
    return sorted(dict.fromkeys(found), key=lambda problem: text.position(problem[0]))


def contradictions(config: Config, images: Collection[str] = ()) -> Iterator[Problem]:
    """What a schema cannot say of a configuration that keeps it."""
    for name, image in config.images.items():
        if name in images:
            yield ("images", name), "an image of that name comes with reprokit: choose another one"
        for place, problem in _image_problems(image):
            yield ("images", name, *place), problem
    known = {*config.images, *images}
    names: dict[str, str] = {}
    cells = looked = 0
    for index, cell in enumerate(config.cells):
        looked += _combinations(cell)
        if looked > _MOST_COMBINATIONS:  # of all cells together: looking takes time
            yield (
                ("cells", index, "matrix"),
                f"{looked} combinations up to here, at most {_MOST_COMBINATIONS} are looked at",
            )
            return
        try:
            found = list(_expanded(cell))
        except _Wrong as wrong:
            yield ("cells", index, *wrong.place), wrong.problem
            continue
        cells += len(found)
        for one, where in found:
            for place, problem in _cell_problems(one, config, known):
                yield ("cells", index, *where.get(place[0], place[:1]), *place[1:]), problem
            if twin := names.get(one.name.lower()):
                same = "the same name" if twin == one.name else f"{excerpt(twin)}, which differs only in case"
                yield (
                    ("cells", index, "name"),
                    f"two cells are called {excerpt(one.name)}: there is {same} already",
                )
            names[one.name.lower()] = one.name
    if cells > MOST_CELLS:
        yield ("cells",), f"{cells} cells, and GitHub runs at most {MOST_CELLS} jobs of one matrix"


def expanded(config: Config) -> list[Cell]:
    """Every cell, those with a `matrix` taken apart, in the order of the file."""
    return [one for cell in config.cells for one, _ in _expanded(cell)]


def find(config: Config, name: str) -> Cell:
    """The cell of that name.

    Raises:
        InvalidInput: there is none.
    """
    cells = {cell.name: cell for cell in expanded(config)}
    if name not in cells:
        raise InvalidInput(f"no cell {excerpt(name)}{nearest(name, cells)}: the cells are {listed(cells)}")
    return cells[name]


def listed(names: Collection[str]) -> str:
    """Names for an error, which stays a line that can be read."""
    return ", ".join(itertools.islice(names, 20)) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )


class _Wrong(Exception):
    """A matrix that cannot be taken apart; the place is relative to its cell."""

    def __init__(self, place: Place, problem: str) -> None:
        self.place = place
        self.problem = problem


def _expanded(cell: Cell) -> Iterator[tuple[Cell, dict[str, Place]]]:
    """The cells that one stands for, each with the places of the values that its matrix gave it.

    Raises:
        _Wrong: its matrix is wrong.
    """
    if not cell.matrix:
        yield cell, {}
        return
    axes = _axes(cell)
    known = {field.encode_name for field in msgspec.structs.fields(Cell)} - set(_NOT_AXES)
    for key, values in axes.items():
        if key not in known:
            raise _Wrong(("matrix", key), f"{excerpt(key)} is no key of a cell{nearest(key, known)}")
        if not values:
            raise _Wrong(("matrix", key), "a list of values is expected, and this one is empty")
    written = {key: value for key, value in msgspec.to_builtins(cell).items() if key != "matrix"}
    excluded, included = _parts(cell, "exclude", known), _parts(cell, "include", known)
    used = set()
    left = len(included)
    for places in itertools.product(*(range(len(values)) for values in axes.values())) if axes else ():
        chosen = {key: values[place] for (key, values), place in zip(axes.items(), places, strict=True)}
        hit = [index for index, part in enumerate(excluded) if _matches(chosen, part)]
        used.update(hit)
        if not hit:
            left += 1
            where = {key: ("matrix", key, place) for key, place in zip(axes, places, strict=True)}
            yield _combined(written, chosen, where)
    for index, part in enumerate(excluded):
        if index not in used:
            shown = ", ".join(f"{name}: {excerpt(value)}" for name, value in part.items())
            raise _Wrong(("matrix", "exclude", index), f"no combination is like {shown}")
    if not left:
        raise _Wrong(("matrix",), "no combination is left, and a gate over no cell would always pass")
    for index, part in enumerate(included):
        yield _combined(written, part, {key: ("matrix", "include", index, key) for key in part})


def _axes(cell: Cell) -> dict[str, list[Any]]:
    return {key: values for key, values in cell.matrix.items() if key not in ("include", "exclude")}


def _combinations(cell: Cell) -> int:
    """How many a matrix has before any is excluded or included."""
    return math.prod(map(len, _axes(cell).values())) if cell.matrix else 0


def _parts(cell: Cell, key: str, known: Iterable[str]) -> list[dict[str, Any]]:
    """The mappings of `include` or `exclude`."""
    parts = cell.matrix.get(key, [])
    if len(parts) > MOST_CELLS:
        raise _Wrong(("matrix", key), f"{len(parts)} entries, at most {MOST_CELLS} are looked at")
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or not part:
            raise _Wrong(
                ("matrix", key, index), f"expected a mapping of keys of a cell, found {excerpt(part)}"
            )
        for name in part:
            if name not in known:
                raise _Wrong(
                    ("matrix", key, index, name), f"{excerpt(name)} is no key of a cell{nearest(name, known)}"
                )
    return parts


def _matches(chosen: dict[str, Any], part: dict[str, Any]) -> bool:
    return all(key in chosen and chosen[key] == value for key, value in part.items())


def _combined(
    written: dict[str, Any], chosen: dict[str, Any], where: dict[str, Place]
) -> tuple[Cell, dict[str, Place]]:
    """The cell of one combination, and `where` its values stand."""
    raw = written | chosen | {"name": _name(written["name"], chosen.values())}
    try:
        cell: Cell = msgspec.convert(raw, Cell)
    except msgspec.ValidationError as error:
        for place, problem in _violations({"version": 1, "cells": [raw]}):
            inside = place[2:]
            if inside and inside[0] in where:
                raise _Wrong((*where[inside[0]], *inside[1:]), problem) from error
        raise _Wrong(("matrix",), str(error)) from error
    return cell, where


def _name(cell: str, values: Iterable[Any]) -> str:
    """A name that is also that of a file and an artifact: it follows from the cell's own and its values alone."""
    words = [cell, *map(_slug, values)]
    name = ".".join(words)
    if len(name) > _LONGEST_NAME:
        rest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]
        name = f"{name[: _LONGEST_NAME - 13].rstrip('._-')}-{rest}"
    return name


def _slug(value: Any) -> str:
    """A value as a part of a name."""
    if isinstance(value, dict):
        text = "_".join(f"{key}-{_slug(item)}" for key, item in value.items())
    elif isinstance(value, list):
        text = "_".join(map(_slug, value))
    else:
        text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip(".-_") or "none"


def _violations(raw: Any) -> Iterator[Problem]:
    """What breaks the schema of a configuration, with words for those who write it."""
    for place, problem in reading.violations(raw, "config", _MOST_PROBLEMS):
        if problem.startswith("expected string, found ") and isinstance(_at(raw, place), (int, float)):
            problem += ": write it in quotes"
        if problem.startswith("expected only known keys"):
            yield from _unknown_keys(place, _at(raw, place))
        else:
            yield place, problem


def _unknown_keys(place: Place, node: dict[str, Any]) -> Iterator[Problem]:
    """The keys of a mapping that its model does not know."""
    models: dict[int, type[Any]] = {0: Config, 2: Cell if place[0:1] == ("cells",) else Image, 3: Limits}
    known = [field.encode_name for field in msgspec.structs.fields(models[len(place)])]
    for key in itertools.islice((key for key in node if key not in known), _MOST_PROBLEMS):
        near = nearest(key, known) or f": the keys are {', '.join(sorted(known))}"
        yield (*place, key), f"there is no key {excerpt(key)} here{near}"


def _stricter(error: msgspec.ValidationError) -> Problem:
    """A refusal of the decoder where the schema sees nothing wrong: to a schema, 1.0 is an integer."""
    problem, _, path = str(error).partition(" - at `$")
    parts = re.findall(r"\.([\w-]+)|\[(\d+)\]", path)
    return tuple(key or int(index) for key, index in parts), problem[:1].lower() + problem[1:]


def _at(raw: Any, place: Place) -> Any:
    for part in place:
        raw = raw[part]
    return raw


def _image_problems(image: Image) -> Iterator[Problem]:
    """What contradicts itself in an image, or leads out of the repository."""
    if (image.base is None) == (image.pull is None):
        yield (), "expected either `base`, to build on, or `pull`, a ready image"
        return
    for key in ("python", "requirements", "wheels", "seen"):
        value = getattr(image, key)
        if image.pull is not None and value is not None:
            yield (key,), f"`{key}` is for an image that is built, and this one is pulled"
        if image.base is not None and value is None and key in ("python", "requirements"):
            yield (), f"expected the key {excerpt(key)}: an image that is built needs it"
    for key in ("requirements", "wheels"):
        value = getattr(image, key)
        if value is not None and (Path(value).is_absolute() or ".." in Path(value).parts or "\0" in value):
            yield (key,), f"expected a path within the repository, found {excerpt(value)}"


def _cell_problems(cell: Cell, config: Config, known: Collection[str]) -> Iterator[Problem]:
    """What contradicts itself in a cell, or is none of the `known` images."""
    if cell.image is not None and cell.image not in known:
        unknown = f"no image {excerpt(cell.image)}{nearest(cell.image, known)}"
        yield ("image",), f"{unknown}: the images are {', '.join(sorted(known)) or 'none'}"
    engine = cell.engine or ("local" if cell.image is None else "docker")
    image = config.images.get(cell.image) if cell.image else None
    if engine == "docker" and "/" in (cell.python or "") and not (cell.python or "").startswith("/"):
        yield ("python",), "expected an absolute path or a name: the image holds nothing of this repository"
    if engine == "docker" and cell.image is None:
        yield ("engine",), "the engine docker runs an image: name it with `image`"
    if engine == "local" and cell.image is not None and (image is None or image.pull is None):
        yield (
            ("engine",),
            "the engine local can only claim to run in an image with a digest, one that `images` has with `pull`",
        )
    if engine == "local" and cell.limits != Limits():
        yield ("limits",), "limits are for a container that is started, and the engine local starts none"
    if cell.gpus and cell.device != "cuda":
        yield ("gpus",), "GPUs are only used with `device: cuda`"
    if cell.gpus and engine == "local":
        yield (
            ("gpus",),
            "a process sees the GPUs of its machine: choose with CUDA_VISIBLE_DEVICES in `variables`",
        )
    if len(cell.gpus) > 1 and "all" in cell.gpus:
        yield ("gpus",), "`all` stands alone"
    if _RESERVED.fullmatch(cell.name) or cell.name.endswith("."):
        yield ("name",), f"{excerpt(cell.name)} is no file name on every system"
    words = {"runs-on": cell.runs_on, "python": [cell.python or ""], "exec": cell.exec, "gpus": cell.gpus}
    for key, values in words.items():
        if any("\0" in value for value in values):
            yield (key,), "no command can hold a NUL"
    for name, value in cell.variables.items():
        if name in _DECIDE_WHAT_RUNS:
            yield ("variables", name), "it decides which code runs, and the probe must be this one"
        if "\0" in str(value):
            yield ("variables", name), "no variable can hold a NUL"
