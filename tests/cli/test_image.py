"""`reprokit image` where no engine is needed; tests/e2e has the rest."""

from __future__ import annotations

NOWHERE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


def test_the_list_needs_no_engine(run):
    done = run("image", "list", **NOWHERE)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: no container engine at unix:///nowhere/docker.sock: ")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert list(rows)[:6] == ["image", "cuda-12.4", "cuda-12.6", "cuda-12.8", "cuda-13.0", "cpu"]
    assert rows["cuda-12.4"][2:] == ["3.10", "2.6.0", "2.2.6", "525.60.13", "?"]
    assert rows["cpu"][2:] == ["3.11", "2.13.0+cpu", "2.4.6", "–", "?"]


def test_a_configuration_that_is_named_must_be_there(run, tmp_path):
    done = run("image", "list", "--config", tmp_path / "missing.yml", **NOWHERE)
    assert done.returncode == 2
    assert f"{tmp_path}/missing.yml: no such file" in done.stderr


def test_an_unknown_image_is_told_with_the_nearest(run):
    done = run("image", "build", "cuda-12.5", **NOWHERE)
    assert done.returncode == 2
    assert 'no image "cuda-12.5"; did you mean "cuda-12.' in done.stderr


def test_without_an_engine_nothing_is_built(run):
    done = run("image", "build", "cpu", **NOWHERE)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no container engine at unix:///nowhere/docker.sock" in done.stderr


def test_without_a_configuration_nobody_knows_what_is_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("image", "prune", **NOWHERE)
    assert done.returncode == 2
    assert "reprokit.yml: no such file, so that nobody knows which images are asked for" in done.stderr
    assert run("image", "prune", "--all", **NOWHERE).returncode == 3
