"""Images on a real engine and from a real registry."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from docker import DockerClient

from reprokit.errors import ProbeFailed, ServiceFailed
from reprokit.images import prepare as preparing
from reprokit.images.prepare import Prepared, prepare
from reprokit.images.recipes import Source, recipe
from reprokit.model.config import Image
from tests.conftest import Run
from tests.e2e.engine import docker

pytestmark = pytest.mark.slow
UNKNOWN = "sha256:" + "1" * 64
SECRETS = {"REGISTRY_TOKEN": "ghp_planted0123456789", "HTTPS_PROXY_PASSWORD": "planted-hunter2"}


def configured(folder: Path, *sources: Source) -> Path:
    """A configuration with images whose files are absolute here, as links beside it."""
    images = {}
    for source in sources:
        image = msgspec.to_builtins(source.image)
        for key in ("requirements", "wheels"):
            if image[key]:
                link = folder / f"{source.name}-{key}"
                link.unlink(missing_ok=True)
                link.symlink_to(source.folder / image[key])
                image[key] = link.name
        images[source.name] = {key: value for key, value in image.items() if value is not None}
    path = folder / "reprokit.yml"
    path.write_text(json.dumps({"version": 1, "cells": [{"name": "cpu"}], "images": images}))
    return path


def test_an_image_is_built_on_its_base_by_digest(engine: str, source: Source, probe_image: Prepared) -> None:
    facts = json.loads(docker(engine, "image", "inspect", probe_image.id))[0]
    labels = facts["Config"]["Labels"]
    name, _, digest = str(source.image.base).partition("@")
    assert labels["io.reprokit.recipe"] == recipe(source).digest == probe_image.told["recipe"]
    assert labels["org.opencontainers.image.base.name"] == name
    assert labels["org.opencontainers.image.base.digest"] == digest
    assert facts["Config"]["User"] == "65532:65532"
    assert facts["RepoTags"] == [recipe(source).tag]
    assert probe_image.told == {
        "name": "ours",
        "digest": None,
        "recipe": recipe(source).digest,
        "base": source.image.base,
        "checked": True,
    }


def test_the_image_has_the_very_wheels_of_its_lock(engine: str, probe_image: Prepared) -> None:
    program = "import torch, numpy; print(torch.__version__, numpy.__version__)"
    command = ["run", "--rm", "--network", "none", probe_image.id, probe_image.python, "-c", program]
    assert docker(engine, *command) == "2.13.0+cpu 2.4.6"


def test_a_second_build_does_nothing(run: Run, source: Source, probe_image: Prepared, tmp_path: Path) -> None:
    config = configured(tmp_path, source)
    done = run("image", "build", "ours", "--config", config)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{probe_image.id}\n"
    assert done.stderr == f"image ours: {probe_image.id[:19]} is there\n"


def test_nothing_is_left_of_the_stage_that_pip_ran_in(
    engine: str, source: Source, probe_image: Prepared
) -> None:
    label = f"label=io.reprokit.stage={recipe(source).digest}"
    assert docker(engine, "images", "--quiet", "--filter", label, "--filter", "dangling=true") == ""


def test_a_pulled_image_is_known_by_its_digest(client: DockerClient, engine: str, base_image: str) -> None:
    said: list[str] = []
    ready = Source("ready", Image(pull=base_image), Path())
    with_tag = prepare(client, ready, said.append)
    assert with_tag.told["digest"] == base_image.partition("@")[2]
    assert with_tag.told["recipe"] is None
    said.clear()
    assert prepare(client, ready, said.append) == with_tag
    assert said == []


def test_a_mirror_serves_the_same_digest(
    client: DockerClient, engine: str, registry: str, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = base_image.partition("@")[2]
    monkeypatch.setenv("REPROKIT_REGISTRY_MIRROR", f"{registry}/mirror/")
    mirrored = f"{registry}/mirror/library/debian-python"
    prepare(client, Source("ready", Image(pull=base_image), Path()), lambda line: None)
    docker(engine, "tag", base_image.replace(":bookworm", ""), f"{mirrored}:x")
    docker(engine, "push", "--quiet", f"{mirrored}:x")
    docker(engine, "rmi", f"{mirrored}:x")
    said: list[str] = []
    of_the_hub = Source("ready", Image(pull=f"debian-python:bookworm@{digest}"), Path())
    prepared = prepare(client, of_the_hub, said.append)
    assert said[0] == f"image: pulling {mirrored}@{digest}"
    assert prepared.told["digest"] == digest


@pytest.mark.parametrize("kind", ["base", "pull"])
def test_an_unknown_digest_is_refused(run: Run, source: Source, tmp_path: Path, kind: str) -> None:
    name = str(source.image.base).partition("@")[0]
    image = (
        msgspec.structs.replace(source.image, base=f"{name}@{UNKNOWN}")
        if kind == "base"
        else Image(pull=f"{name}@{UNKNOWN}")
    )
    done = run("image", "build", "ours", "--config", configured(tmp_path, replace(source, image=image)))
    assert done.returncode == 4
    assert (
        f"{name.rpartition(':')[0]}@{UNKNOWN} cannot be pulled: the registry does not know this digest"
        in done.stderr
    )
    assert done.stdout == ""


def test_a_registry_that_is_gone_is_a_failed_service(client: DockerClient, engine: str) -> None:
    image = Image(pull=f"127.0.0.1:9/nobody@{UNKNOWN}")
    with pytest.raises(ServiceFailed, match="is the registry reachable from here"):
        prepare(client, Source("gone", image, Path()), lambda line: None)


def test_a_wheel_of_another_hash_is_refused(engine: str, run: Run, source: Source, tmp_path: Path) -> None:
    lock = (source.folder / str(source.image.requirements)).read_text()
    wrong = re.sub(r"(filelock==\S+ \\\n\s+--hash=sha256:)[0-9a-f]{64}", rf"\g<1>{'0' * 64}", lock)
    assert wrong != lock
    (tmp_path / "wrong.lock").write_text(wrong)
    image = msgspec.structs.replace(source.image, requirements="wrong.lock")
    before = docker(engine, "images", "--all", "--quiet")
    done = run("image", "build", "ours", "--config", configured(tmp_path, Source("ours", image, tmp_path)))
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert re.search(r"image ours cannot be built: step \d+/\d+, `RUN if .*` failed; its last lines: ", last)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE" in last
    assert "Expected sha256 " + "0" * 64 in last
    left = set(docker(engine, "images", "--all", "--quiet").split()) - set(before.split())
    assert docker(engine, "ps", "--all", "--quiet", "--filter", "status=exited") == "" or not left


def test_a_package_that_is_in_no_wheel_is_named_with_the_way_out(
    client: DockerClient, source: Source, tmp_path: Path
) -> None:
    (tmp_path / "x.lock").write_text(f"nowhere==1.0 --hash=sha256:{'0' * 64}\n")
    image = msgspec.structs.replace(source.image, requirements="x.lock")
    with pytest.raises(ProbeFailed, match=r"nowhere==1\.0") as failed:
        prepare(client, Source("ours", image, tmp_path), lambda line: None)
    assert "REPROKIT_PIP_CONFIG" in str(failed.value)


def test_no_secret_of_the_runner_is_in_an_image(
    client: DockerClient, engine: str, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nretries = 1\n; planted-index-password\n")
    monkeypatch.setenv(preparing.PIP_CONFIG, str(config))
    lock = (source.folder / str(source.image.requirements)).read_text()
    (tmp_path / "again.lock").write_text(lock + "# another recipe\n")
    image = msgspec.structs.replace(source.image, requirements="again.lock")
    said: list[str] = []
    made = prepare(client, Source("again", image, tmp_path), said.append)
    try:
        told = docker(engine, "history", "--no-trunc", made.id) + docker(engine, "image", "inspect", made.id)
        archive = tmp_path / "image.tar"
        docker(engine, "save", "-o", str(archive), made.id)
        content = archive.read_bytes()
        for secret in (*SECRETS.values(), "planted-index-password"):
            assert secret not in told + "".join(said)
            assert secret.encode() not in content
    finally:
        docker(engine, "rmi", recipe(Source("again", image, tmp_path)).tag)


def test_only_what_reprokit_built_and_nobody_asks_for_is_removed(
    client: DockerClient,
    engine: str,
    run: Run,
    base_image: str,
    source: Source,
    probe_image: Prepared,
    tmp_path: Path,
) -> None:
    prepare(client, Source("ready", Image(pull=base_image), Path()), lambda line: None)
    name = base_image.replace(":bookworm", "")
    context = tmp_path / "context"
    context.mkdir()
    for tag, label in (("foreign:1", "mine=1"), ("reprokit/old:1", "io.reprokit.recipe=old")):
        (context / "Dockerfile").write_text(f"FROM {name}\nLABEL {label}\n")
        os.environ["DOCKER_BUILDKIT"] = "0"
        docker(engine, "build", "--quiet", "--network", "none", "-t", tag, str(context))
    foreign = docker(engine, "create", "foreign:1", "true")
    config = configured(tmp_path, source)
    try:
        dry = run("image", "prune", "--config", config, "--dry-run")
        assert "would remove reprokit/old:1" in dry.stdout
        assert docker(engine, "images", "--quiet", "reprokit/old:1") != ""
        done = run("image", "prune", "--config", config)
        assert (done.returncode, done.stderr) == (0, "")
        assert "removed reprokit/old:1" in done.stdout
        assert docker(engine, "images", "--quiet", "reprokit/old:1") == ""
        assert docker(engine, "images", "--quiet", "foreign:1") != ""
        assert docker(engine, "image", "inspect", "--format", "{{.Id}}", recipe(source).tag) == probe_image.id
        assert foreign.startswith(docker(engine, "ps", "--all", "--quiet", "--filter", f"id={foreign}"))
    finally:
        docker(engine, "rm", foreign)
        docker(engine, "rmi", "foreign:1")


def test_an_image_that_a_container_uses_stays(
    engine: str, run: Run, source: Source, probe_image: Prepared, tmp_path: Path
) -> None:
    container = docker(engine, "create", probe_image.id, "true")
    try:
        done = run("image", "prune", "--all", "--config", configured(tmp_path, source))
        assert done.returncode == 0
        assert f"{recipe(source).tag} stays: " in done.stderr
    finally:
        docker(engine, "rm", container)
    assert docker(engine, "image", "inspect", "--format", "{{.Id}}", recipe(source).tag) == probe_image.id


def test_the_list_says_what_is_here(run: Run, source: Source, probe_image: Prepared, tmp_path: Path) -> None:
    done = run("image", "list", "--config", configured(tmp_path, source))
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["ours"][2:6] == ["3.11", "2.13.0+cpu", "2.4.6", "–"]
    assert rows["ours"][-1] == "GB"
    assert rows["cuda-13.0"][1:6] == [
        "nvidia/cuda:13.0.3-base-ubuntu24.04",
        "3.12",
        "2.13.0",
        "2.4.6",
        "580.65.06",
    ]
    assert rows["cuda-13.0"][-2:] == ["not", "built"]
