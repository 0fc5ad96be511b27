"""Names by digest, the mirror, and what a registry's refusals are called."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import InvalidInput, ProbeFailed, ReprokitError, ServiceFailed
from reprokit.images.registry import MIRROR, by_digest, pulled, through_mirror

DIGEST = "sha256:" + "ab" * 32
WORD = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)


class Engine:
    """An engine that knows some images and gets what `answers` has when it pulls."""

    def __init__(self, known: set[str], answers: list[Any]) -> None:
        self.known = known
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.images = self.api = self

    def get(self, name: str) -> str:
        if name not in self.known:
            raise ImageNotFound(name)
        return name

    def pull(self, repository: str, tag: str, **_: Any) -> list[Any]:
        self.asked.append((repository, tag))
        for answer in self.answers:
            if isinstance(answer, BaseException):
                raise answer
        self.known.add(f"{repository}@{tag}")
        return self.answers


def pull(engine: Engine, reference: str, say: Any = lambda line: None) -> str:
    return pulled(engine, reference, say)  # type: ignore[arg-type]


@given(st.lists(WORD, min_size=1, max_size=3), st.none() | WORD, st.none() | st.integers(1, 65535))
def test_a_tag_is_dropped_and_a_port_is_not(parts: list[str], tag: str | None, port: int | None) -> None:
    host = "" if port is None else f"registry.example:{port}/"
    name = host + "/".join(parts)
    assert by_digest(f"{name}{f':{tag}' if tag else ''}@{DIGEST}") == f"{name}@{DIGEST}"


@pytest.mark.parametrize(
    ("name", "mirrored"),
    [
        ("debian", "m.example:5000/hub/library/debian"),
        ("nvidia/cuda", "m.example:5000/hub/nvidia/cuda"),
        ("docker.io/nvidia/cuda", "m.example:5000/hub/nvidia/cuda"),
        ("docker.io/library/debian", "m.example:5000/hub/library/debian"),
        ("ghcr.io/owner/image", "ghcr.io/owner/image"),
        ("localhost/image", "localhost/image"),
        ("127.0.0.1:5000/image", "127.0.0.1:5000/image"),
    ],
)
def test_the_mirror_is_one_of_docker_hub(monkeypatch: pytest.MonkeyPatch, name: str, mirrored: str) -> None:
    monkeypatch.setenv(MIRROR, "m.example:5000/hub/")
    assert through_mirror(f"{name}@{DIGEST}") == f"{mirrored}@{DIGEST}"
    monkeypatch.delenv(MIRROR)
    assert through_mirror(f"{name}@{DIGEST}") == f"{name}@{DIGEST}"


@pytest.mark.parametrize(
    "wrong", ["user:hunter2@m.example", "https://m.example", "m.example/a b", "m.example:x"]
)
def test_a_wrong_mirror_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(MIRROR, wrong)
    with pytest.raises(InvalidInput, match=rf"{MIRROR}: expected host\[:port\]\[/prefix\]") as refused:
        through_mirror(f"debian@{DIGEST}")
    assert wrong not in str(refused.value)


def test_what_is_there_is_not_asked_for() -> None:
    engine = Engine({f"debian@{DIGEST}"}, [])
    assert pull(engine, f"debian:bookworm@{DIGEST}") == f"debian@{DIGEST}"
    assert engine.asked == []


def test_what_came_through_no_mirror_is_there_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR, "m.example")
    engine = Engine({f"debian@{DIGEST}"}, [])
    assert pull(engine, f"debian@{DIGEST}") == f"debian@{DIGEST}"
    assert engine.asked == []


def test_layers_are_told_and_bytes_are_not() -> None:
    said: list[str] = []
    events = [
        {"status": "Pulling from library/debian", "id": DIGEST},
        {"status": "Downloading", "id": "aa", "progressDetail": {"current": 1}},
        {"status": "Pull complete", "id": "aa"},
        {"status": "Status: Downloaded newer image"},
    ]
    engine = Engine(set(), events)
    assert pull(engine, f"debian:bookworm@{DIGEST}", said.append) == f"debian@{DIGEST}"
    assert engine.asked == [("debian", DIGEST)]
    assert said == [
        f"image: pulling debian@{DIGEST}",
        "image: aa Pull complete",
        "image: Status: Downloaded newer image",
    ]


REFUSALS = [
    ("manifest unknown: manifest unknown", ServiceFailed, "does not know this digest"),
    (
        "toomanyrequests: You have reached your pull rate limit",
        ServiceFailed,
        "docker login.*or name a mirror",
    ),
    ("pull access denied, repository does not exist", ServiceFailed, "log in with `docker login`"),
    ("unauthorized: authentication required", ServiceFailed, "log in with `docker login`"),
    ("no matching manifest for linux/arm64/v8", ServiceFailed, "another processor"),
    ("dial tcp: connect: connection refused", ServiceFailed, "is the registry reachable from here"),
    (
        "failed to register layer: no space left on device",
        ProbeFailed,
        "disk is full: `reprokit image prune`",
    ),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("reason", "kind", "advice"), REFUSALS)
def test_a_refusal_names_digest_reason_and_what_to_do(
    streamed: bool, reason: str, kind: type[ReprokitError], advice: str
) -> None:
    answer = {"error": reason} if streamed else APIError("500", explanation=reason)  # type: ignore[no-untyped-call]
    with pytest.raises(kind, match=advice) as failed:
        pull(Engine(set(), [answer]), f"debian:bookworm@{DIGEST}")
    assert type(failed.value) is kind
    assert f"debian@{DIGEST} cannot be pulled: " in str(failed.value)
    assert reason in str(failed.value)


def test_an_engine_that_goes_away_is_no_fault_of_the_registry() -> None:
    with pytest.raises(ProbeFailed, match=f"debian@{DIGEST} cannot be pulled: the socket is gone"):
        pull(Engine(set(), [ConnectionError("the socket is gone")]), f"debian@{DIGEST}")
