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
    found = list(problems(text, images))
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


def problems(text: Text, images: Collection[str] = ()) -> Iterator[Problem]:
    """What is wrong with a configuration: first by its schema, then, where that is kept, by its meaning."""
    try:
        config = msgspec.convert(text.data, Config)
    except msgspec.ValidationError:
        yield from _violations(text.data)
        return
    yield from contradictions(config, images)


def contradictions(config: Config, images: Collection[str] = ()) -> Iterator[Problem]:
    """What a schema cannot say of a configuration that keeps it."""
    for name, image in config.images.items():
        if name in images:
            yield ("images", name), "an image of that name comes with reprokit: choose another one"
        for place, problem in _image_problems(image):
            yield ("images", name, *place), problem
    known = {*config.images, *images}
    names: dict[str, str] = {}
    cells = 0
    for index, cell in enumerate(config.cells):
        try:
            found = list(_expanded(cell))
        except _Wrong as wrong:
            yield ("cells", index, *wrong.place), wrong.problem
            continue
        cells += len(found)
        for one in found:
            if one.image is not None and one.image not in known:
                unknown = f"no image {excerpt(one.image)}{nearest(one.image, known)}"
                yield (
                    ("cells", index, "image"),
                    f"{unknown}: the images are {', '.join(sorted(known)) or 'none'}",
                )
            for place, problem in _cell_problems(one, config):
                yield ("cells", index, *place), problem
            twin = names.setdefault(one.name.lower(), one.name)
            if twin is not one.name:
                same = "the same name" if twin == one.name else f"{excerpt(twin)}, which differs only in case"
                yield (
                    ("cells", index, "name"),
                    f"two cells are called {excerpt(one.name)}: there is {same} already",
                )
    if cells > MOST_CELLS:
        yield ("cells",), f"{cells} cells, and GitHub runs at most {MOST_CELLS} jobs of one matrix"


def expanded(config: Config) -> list[Cell]:
    """Every cell, those with a `matrix` taken apart, in the order of the file."""
    return [one for cell in config.cells for one in _expanded(cell)]


def find(config: Config, name: str) -> Cell:
    """The cell of that name.

    Raises:
        InvalidInput: there is none.
    """
    cells = {cell.name: cell for cell in expanded(config)}
    if name not in cells:
        shown = ", ".join(itertools.islice(cells, 20)) + (", …" if len(cells) > 20 else "")
        raise InvalidInput(f"no cell {excerpt(name)}{nearest(name, cells)}: the cells are {shown}")
    return cells[name]


class _Wrong(Exception):
    """A matrix that cannot be taken apart; the place is relative to its cell."""

    def __init__(self, place: Place, problem: str) -> None:
        self.place = place
        self.problem = problem


def _expanded(cell: Cell) -> Iterator[Cell]:
    """The cells that one stands for.

    Raises:
        _Wrong: its matrix is wrong.
    """
    if not cell.matrix:
        yield cell
        return
    axes = {key: values for key, values in cell.matrix.items() if key not in ("include", "exclude")}
    known = {field.encode_name for field in msgspec.structs.fields(Cell)} - set(_NOT_AXES)
    for key, values in axes.items():
        if key not in known:
            raise _Wrong(("matrix", key), f"{excerpt(key)} is no key of a cell{nearest(key, known)}")
        if not values:
            raise _Wrong(("matrix", key), "a list of values is expected, and this one is empty")
    if (count := math.prod(map(len, axes.values()))) > _MOST_COMBINATIONS:
        raise _Wrong(("matrix",), f"{count} combinations, at most {_MOST_COMBINATIONS} are looked at")
    written = {key: value for key, value in msgspec.to_builtins(cell).items() if key != "matrix"}
    excluded = _parts(cell, "exclude", known)
    used = set()
    for places in itertools.product(*(range(len(values)) for values in axes.values())):
        chosen = {key: values[place] for (key, values), place in zip(axes.items(), places, strict=True)}
        hit = [index for index, part in enumerate(excluded) if _matches(chosen, part)]
        used.update(hit)
        if not hit:
            where = {key: ("matrix", key, place) for key, place in zip(axes, places, strict=True)}
            yield _combined(written, chosen, where)
    for index, part in enumerate(excluded):
        if index not in used:
            raise _Wrong(("matrix", "exclude", index), f"no combination is like {excerpt(json.dumps(part))}")
    for index, part in enumerate(_parts(cell, "include", known)):
        yield _combined(written, part, {key: ("matrix", "include", index, key) for key in part})


def _parts(cell: Cell, key: str, known: Iterable[str]) -> list[dict[str, Any]]:
    """The mappings of `include` or `exclude`."""
    parts = cell.matrix.get(key, [])
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


def _combined(written: dict[str, Any], chosen: dict[str, Any], where: dict[str, Place]) -> Cell:
    """The cell of one combination; `where` its values stand is for the error."""
    raw = written | chosen | {"name": _name(written["name"], chosen.values())}
    try:
        cell: Cell = msgspec.convert(raw, Cell)
    except msgspec.ValidationError as error:
        for place, problem in _violations({"version": 1, "cells": [raw]}):
            inside = place[2:]
            if inside and inside[0] in where:
                raise _Wrong((*where[inside[0]], *inside[1:]), problem) from error
        raise _Wrong(("matrix",), str(error)) from error
    return cell


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
    for place, problem in reading.violations(raw, "config"):
        if place[-1:] == ("mode",) and _at(raw, place) == "strict":
            problem = "the mode strict is not there yet: the probe has only default"
        if problem.startswith("expected string, found ") and isinstance(_at(raw, place), (int, float)):
            problem += ": write it in quotes"
        if problem.startswith("expected only known keys"):
            node = _at(raw, place)
            key, known = _unknown_key(place, node)
            place = (*place, key)
            near = nearest(key, known) or f": the keys are {', '.join(sorted(known))}"
            problem = f"there is no key {excerpt(key)} here{near}"
        yield place, problem


def _unknown_key(place: Place, node: dict[str, Any]) -> tuple[str, list[str]]:
    """The first key of a mapping that its model does not know, and those that it does."""
    models: dict[int, type[Any]] = {0: Config, 2: Cell if place[0:1] == ("cells",) else Image, 3: Limits}
    known = [field.encode_name for field in msgspec.structs.fields(models[len(place)])]
    return next(key for key in node if key not in known), known


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
        if value is not None and (Path(value).is_absolute() or ".." in Path(value).parts):
            yield (key,), f"expected a path within the repository, found {excerpt(value)}"


def _cell_problems(cell: Cell, config: Config) -> Iterator[Problem]:
    """What contradicts itself in a cell."""
    engine = cell.engine or ("local" if cell.image is None else "docker")
    image = config.images.get(cell.image) if cell.image else None
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
    for name, value in cell.variables.items():
        if name in _DECIDE_WHAT_RUNS:
            yield ("variables", name), "it decides which code runs, and the probe must be this one"
        if "\0" in str(value):
            yield ("variables", name), "no variable can hold a NUL"
