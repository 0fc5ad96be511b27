"""Finding an engine, and telling an abandoned container."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import docker as sdk
import pytest
import requests

from reprokit.engines import docker, owner
from reprokit.errors import ProbeFailed
from tests import processes


def refused() -> str:
    with pytest.raises(ProbeFailed) as failed, docker.connected():
        pass
    assert failed.value.exit_code == 3
    return str(failed.value)


@pytest.mark.usefixtures("unreachable")
def test_no_engine_names_the_socket_and_the_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert refused() == (
        f"no container engine at unix://{tmp_path}/none.sock: No such file or directory: start it, or name another "
        "one in DOCKER_HOST; or measure without one, with `engine: local` and no `image`"
    )


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("host", ["nonsense://x", "tcp://127.0.0.1:9", "ssh://nobody@127.0.0.1:9"])
def test_an_engine_that_cannot_be_reached_is_named(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert refused().startswith(f"no container engine at {host}: ")


def test_a_denied_socket_says_how_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(**_: object) -> None:
        raise sdk.errors.DockerException("Error") from PermissionError(13, "Permission denied")

    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    monkeypatch.setattr(sdk, "from_env", denied)
    assert "add the user of the runner to the group docker" in refused()


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("chosen", ["file", "variable"])
def test_the_context_of_the_docker_command_counts(
    chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meta = tmp_path / "contexts" / "meta" / hashlib.sha256(b"rootless").hexdigest()
    meta.mkdir(parents=True)
    endpoints = {"docker": {"Host": f"unix://{tmp_path}/rootless.sock", "SkipTLSVerify": False}}
    (meta / "meta.json").write_text(json.dumps({"Name": "rootless", "Metadata": {}, "Endpoints": endpoints}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    if chosen == "file":
        (tmp_path / "config.json").write_text('{"currentContext": "rootless"}')
    else:
        (tmp_path / "config.json").write_text("{}")
        monkeypatch.setenv("DOCKER_CONTEXT", "rootless")
    assert f"no container engine at unix://{tmp_path}/rootless.sock: " in refused()


def test_a_broken_context_falls_back_to_the_engine_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    assert docker._context_host() == "unix:///var/run/docker.sock"


@processes.linux
def test_the_container_of_a_living_run_is_not_abandoned_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = docker.labels(timeout=60)
    assert labels["io.reprokit.owner"] == owner.own()
    assert not docker.abandoned(labels)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60 + 599)
    assert not docker.abandoned(labels)
    monkeypatch.setattr(time, "time", lambda: now + 60 + 601)
    assert docker.abandoned(labels)


@processes.linux
def test_the_container_of_an_ended_run_is_abandoned() -> None:
    program = "import json; from reprokit.engines import docker; print(json.dumps(docker.labels(60)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=os.environ)
    assert docker.abandoned(json.loads(done.stdout))


@pytest.mark.parametrize("deadline", ["", "soon", "-1", "¹", "0"])
def test_a_label_without_a_deadline_protects_nothing(deadline: str) -> None:
    assert docker.abandoned({"io.reprokit.owner": owner.own(), "io.reprokit.deadline": deadline})


def answered(code: int) -> sdk.errors.APIError:
    response = requests.Response()
    response.status_code = code
    return sdk.errors.APIError("the engine's words", response=response)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (sdk.errors.NotFound("gone"), None),
        (answered(409), None),  # somebody else removes it
        (answered(500), "500 Server Error"),
        (requests.ConnectionError("the engine is gone"), "the engine is gone"),
    ],
)
def test_a_removal_that_fails_is_told_and_hides_no_other_fault(fault: Exception, told: str | None) -> None:
    client = Mock()
    client.api.remove_container.side_effect = fault
    found = docker.remove(client, "reprokit-cpu-1")
    assert (found is None) if told is None else (found is not None and told in found)
    client.api.remove_container.assert_called_once_with("reprokit-cpu-1", force=True, v=True)
