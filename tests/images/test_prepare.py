"""What an engine is asked to build, and what its answers are made of."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from reprokit.engines import owner
from reprokit.engines.docker import OWNER
from reprokit.errors import InvalidInput, ProbeFailed
from reprokit.images.prepare import PIP_CONFIG, PYTHON, RECIPE, STAGE, Prepared, prepare
from reprokit.images.recipes import FOLDER, Source, recipe
from reprokit.model.config import Image

DIGEST = "sha256:" + "ab" * 32
BASE = f"debian:bookworm@{DIGEST}"


class Engine:
    """An engine that has the base, and answers a build with `events`; a build without an error leaves an image."""

    def __init__(self, *events: Any, leaves: bool = True) -> None:
        self.events = events
        self.leaves = leaves
        self.built: list[dict[str, Any]] = []
        self.contexts: list[dict[str, bytes | None]] = []
        self.left: dict[str, str] = {}
        self.killed, self.owner = "", ""
        self.removed: list[str] = []
        self.made: dict[str, str] = {}
        self.images = self.api = self

    def get(self, name: str) -> SimpleNamespace:
        if name in self.made:
            return SimpleNamespace(id="sha256:made", labels={RECIPE: self.made[name]})
        if name != f"debian@{DIGEST}":
            raise ImageNotFound(name)
        return SimpleNamespace(id="sha256:base")

    def list(self, filters: dict[str, Any]) -> list[SimpleNamespace]:
        assert filters["dangling"]
        labels = filters["label"]
        found = self.left.pop(labels[0], None) if isinstance(labels, list) else self.killed
        return [SimpleNamespace(id=found, labels={OWNER: self.owner})] if found else []

    def build(self, fileobj: Any, **options: Any) -> Iterator[Any]:
        with tarfile.open(fileobj=io.BytesIO(fileobj.read())) as archive:
            members = {member.name: archive.extractfile(member) for member in archive}
            self.contexts.append({name: file.read() if file else None for name, file in members.items()})
        self.built.append(options)
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event
        if self.leaves and options["tag"]:
            self.made[options["tag"]] = options["labels"][RECIPE]

    def remove(self, image: str) -> None:
        self.removed.append(image)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "x.lock").write_text(f"numpy==1 --hash={DIGEST}\n")
    return Source("x", Image(base=BASE, python="3.11", requirements="x.lock"), tmp_path)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "numpy-1-py3-none-any.whl").write_bytes(b"wheel")
    (folder / "notes.txt").write_bytes(b"not for the image")
    return folder


def made(engine: Engine, source: Source, wheels: Path | None = None) -> tuple[Prepared, list[str]]:
    said: list[str] = []
    return prepare(engine, source, said.append, wheels), said  # type: ignore[arg-type]


def test_an_image_is_built_from_its_recipe_and_nothing_else(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2@proxy.example")
    engine = Engine()
    prepared, _ = made(engine, source)
    digest = recipe(source).digest
    assert prepared == Prepared(
        "sha256:made",
        PYTHON,
        {"name": "x", "digest": None, "recipe": digest, "base": BASE, "checked": True},
    )
    (options,) = engine.built
    assert options["buildargs"] == {
        "BASE": f"debian@{DIGEST}",
        "PYTHON": "3.11",
        "RECIPE": digest,
        "OWNER": owner.own(),
    }
    assert options["network_mode"] is None
    assert engine.contexts == [
        {
            "Dockerfile": (FOLDER / "Dockerfile").read_bytes(),
            "requirements.lock": (source.folder / "x.lock").read_bytes(),
            "pip.conf": b"",
            "wheels": None,
        }
    ]


def test_what_is_there_is_not_built_again(source: Source) -> None:
    engine = Engine()
    first, _ = made(engine, source)
    again, said = made(engine, source)
    assert again == first
    assert len(engine.built) == 1
    assert said == ["image x: sha256:made is there"]


def test_with_wheels_only_the_base_may_use_the_network(source: Source, wheels: Path) -> None:
    engine = Engine()
    made(engine, source, wheels)
    assert [(options["target"], options["network_mode"]) for options in engine.built] == [
        ("python", None),
        (None, "none"),
    ]
    first, last = engine.contexts
    assert [name for name in first if name.startswith("wheels/")] == []
    assert {name: content for name, content in last.items() if name.startswith("wheels/")} == {
        "wheels/numpy-1-py3-none-any.whl": b"wheel"
    }


def test_a_folder_without_wheels_is_refused(source: Source, tmp_path: Path) -> None:
    engine = Engine()
    with pytest.raises(InvalidInput, match=r"a folder of wheels is expected there, and none is in it"):
        made(engine, source, tmp_path)
    assert engine.made == {}


def test_the_configuration_of_pip_is_in_the_context_alone(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = secret\n")
    monkeypatch.setenv(PIP_CONFIG, str(tmp_path / "pip.conf"))
    engine = Engine()
    _, said = made(engine, source)
    assert engine.contexts[0]["pip.conf"] == b"[global]\nindex-url = secret\n"
    assert "secret" not in f"{engine.built}{said}"


def step(number: int, command: str, *lines: str) -> list[dict[str, str]]:
    texts = (f"Step {number}/9 : {command}", "\n", " ---> Running in 0123456789ab\n", *lines)
    return [{"stream": text} for text in texts]


def test_each_step_is_told(source: Source) -> None:
    events = [
        *step(1, "ARG BASE"),
        *step(2, "RUN pip  install", "\x1b[91mCollecting numpy\n\x1b[0m", " ---> 0123456789ab\n"),
    ]
    _, said = made(Engine(*events), source)
    assert said == ["image [1/9] ARG BASE", "image [2/9] RUN pip install", "Collecting numpy"]


def test_a_failed_step_is_named_with_its_last_lines(source: Source) -> None:
    events = [
        *step(1, "RUN first", "line of the first\n"),
        *step(2, "RUN second", *(f"line {number}\n" for number in range(30))),
        {"error": "The command returned a non-zero code: 1"},
    ]
    engine = Engine(*events)
    engine.left = {f"{STAGE}={recipe(source).digest}": "sha256:stage", f"{STAGE}=another": "sha256:another"}
    with pytest.raises(ProbeFailed) as failed:
        made(engine, source)
    message = str(failed.value)
    lines = " | ".join(f"line {number}" for number in range(10, 30))
    assert message == f"image x cannot be built: step 2/9, `RUN second` failed; its last lines: {lines}"
    assert engine.removed == ["sha256:stage"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", PIP_CONFIG),
        ("OSError: [Errno 28] No space left on device", "reprokit image prune"),
    ],
)
def test_a_failure_that_is_known_comes_with_the_way_out(source: Source, line: str, hint: str) -> None:
    events = [*step(1, "RUN apt", "of another step\n"), *step(2, "RUN pip", f"{line}\n"), {"error": "code 1"}]
    with pytest.raises(ProbeFailed, match=hint) as failed:
        made(Engine(*events), source)
    assert line in str(failed.value)
    assert "of another step" not in str(failed.value)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (APIError("500", explanation="dockerfile parse error"), "dockerfile parse error"),  # type: ignore[no-untyped-call]
        (ConnectionError("the socket is gone"), "the engine failed: the socket is gone"),
    ],
)
def test_a_fault_of_the_engine_is_told(source: Source, fault: Exception, problem: str) -> None:
    with pytest.raises(ProbeFailed, match=f"image x cannot be built: {problem}"):
        made(Engine(fault), source)


def test_an_engine_that_is_gone_does_not_hide_its_fault_when_cleaning_up(source: Source) -> None:
    engine = Engine(ConnectionError("the socket is gone"))

    engine.left = {f"{STAGE}={recipe(source).digest}": "sha256:stage"}

    def gone(image: str) -> None:
        raise ConnectionError("still")

    engine.remove = gone  # type: ignore[method-assign]
    with pytest.raises(ProbeFailed, match="the socket is gone"):
        made(engine, source)


def test_a_build_that_ends_without_an_image_is_a_failure(source: Source) -> None:
    with pytest.raises(ProbeFailed, match="ended the build without an image"):
        made(Engine(leaves=False), source)


def test_a_pulled_image_is_told_by_its_digest(tmp_path: Path) -> None:
    prepared, said = made(Engine(), Source("ready", Image(pull=BASE), tmp_path))
    assert prepared.id == "sha256:base"
    assert prepared.python == "python3"
    assert prepared.told == {"name": "ready", "digest": DIGEST, "recipe": None, "base": None, "checked": True}
    assert said == []


def test_an_image_of_that_name_and_another_recipe_is_not_taken_for_it(source: Source) -> None:
    engine = Engine()
    engine.made[recipe(source).tag] = "another"
    made(engine, source)
    assert len(engine.built) == 1


@pytest.mark.parametrize("ended", [True, False])
def test_the_stage_of_a_killed_build_is_removed_and_a_living_ones_is_not(
    source: Source, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    engine.killed, engine.owner = "sha256:stage", "somebody"
    monkeypatch.setattr(owner, "ended", lambda who: ended and who == "somebody")
    made(engine, source)
    assert ("sha256:stage" in engine.removed) == ended
