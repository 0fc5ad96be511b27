"""The probe side in an interpreter of this machine."""

from __future__ import annotations

import ast
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit import launch
from reprokit.engines import local
from reprokit.engines.job import Job
from reprokit.errors import ProbeFailed
from tests import processes

TOLD: dict[str, Any] = {"image": None, "commit": "c" * 40, "dirty": True}
SECRETS = {
    "GITHUB_TOKEN": "ghs_planted0123",
    "ACTIONS_RUNTIME_TOKEN": "planted.jwt",
    "AWS_SECRET_ACCESS_KEY": "AKIA",
}


def job(python: str | Path, timeout: float = 120, **fields: Any) -> Job:
    given: dict[str, Any] = {"arguments": ["--profile", "quick"], "variables": {}, "prefix": [], "told": TOLD}
    return Job(python=str(python), timeout=timeout, **(given | fields))


def run(job: Job) -> bytes:
    return local.run(job, lambda line: None)


def failure(job: Job) -> str:
    with pytest.raises(ProbeFailed) as failed:
        run(job)
    assert failed.value.exit_code == 3
    return str(failed.value)


def script(path: Path, text: str) -> Path:
    """A program that stands in for an interpreter."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_only_what_a_process_needs_and_the_cells_variables_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECRETS, "SLURM_JOB_ID": "7", "PYTHONPATH": "/x", "LC_TIME": "C"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    python = script(tmp_path / "python", "exec env")

    def passed(**fields: Any) -> dict[str, str]:
        lines = run(job(python, **fields)).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    found = passed(variables={"MKL_CBWR": "COMPATIBLE", "LC_TIME": "POSIX"})
    assert found["MKL_CBWR"] == "COMPATIBLE"
    assert (found["LC_TIME"], found["CUDA_VISIBLE_DEVICES"]) == ("POSIX", "1")
    allowed = {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "MKL_CBWR",
    }  # fmt: skip
    shell = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert {name for name in found if not name.startswith("LC_")} - shell <= allowed
    behind_a_prefix = passed(prefix=["env"])
    assert behind_a_prefix["SLURM_JOB_ID"] == "7"
    assert not set(SECRETS) & set(behind_a_prefix)


def test_the_working_folder_is_not_on_the_path_and_the_staged_side_is_first(tmp_path: Path) -> None:
    python = script(tmp_path / "python", 'printf "%s\\n" "$@"')
    words = run(job(python)).decode().splitlines()
    assert words[:2] == ["-B", "-c"]
    assert words[3].startswith("/") and Path(words[3]).name.startswith("reprokit-run-")
    assert words[4:] == ["reprokit.probe", "--profile", "quick", "--told", json.dumps(TOLD)]
    assert not Path(words[3]).exists()


def test_a_missing_interpreter_names_the_key() -> None:
    assert failure(job("python-that-is-not-there")) == (
        "python-that-is-not-there: no such interpreter; `python:` of the cell names the one that has torch and NumPy"
    )


def test_a_missing_prefix_names_the_key() -> None:
    told = failure(job("python3", prefix=["srun-that-is-not-there"]))
    assert told.startswith("srun-that-is-not-there: no such command; `exec:` of the cell")


def test_the_interpreter_is_found_on_the_path_of_the_cell(tmp_path: Path) -> None:
    script(tmp_path / "python-of-the-cell", "echo {}")
    assert run(job("python-of-the-cell", variables={"PATH": f"{tmp_path}:/usr/bin:/bin"})) == b"{}\n"
    assert "no such interpreter" in failure(job("python-of-the-cell"))


def test_an_interpreter_without_torch_names_the_key(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'exec {sys.executable} -S "$@"')
    told = failure(job(python))
    assert "has no numpy; the probe needs torch and numpy: let `python:` of the cell name" in told


def test_a_python_that_is_too_old_is_told_so(tmp_path: Path) -> None:
    ast.parse(launch._START, feature_version=(3, 4))  # an old interpreter can read what refuses it
    program = tmp_path / "old.py"
    program.write_text(
        "import sys; sys.version_info = (3, 9, 18); sys.argv[:3] = ['-c']; exec(%r)" % launch._START  # noqa: UP031
    )
    python = script(tmp_path / "python", f'exec {sys.executable} {program} "$@"')
    assert failure(job(python)) == f"{sys.executable} is Python 3.9, the probe needs 3.10 or newer"


def test_the_fault_of_a_gpu_is_told_as_one(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo 'Failed to initialize NVML: Unknown Error' >&2; exit 1")
    assert failure(job(python)).startswith("the NVIDIA driver does not answer: ")


def test_what_is_no_program_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_bytes(b"\x7fELF nonsense")
    python.chmod(0o755)
    assert "cannot be started: " in failure(job(python))


@processes.linux
@pytest.mark.parametrize("end", ["timeout", "interrupt"])
def test_the_end_takes_every_process_along(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GRACE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "never")
    python = script(
        tmp_path / "python",
        f"trap '' TERM; (read x < {tmp_path}/never) & echo $$ $! >&2; wait; read x < {tmp_path}/never",
    )
    descriptors: list[int] = []

    def say(line: str) -> None:
        descriptors.extend(os.pidfd_open(int(pid)) for pid in line.split())
        if end == "interrupt":
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt if end == "interrupt" else ProbeFailed) as ended:
            local.run(job(python, timeout=0.3 if end == "timeout" else 600), say)
        assert end == "interrupt" or "took longer than 0.3 s, the cell's timeout" in str(ended.value)
        assert len(descriptors) == 2
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 60)[0], "a process of the group lives on"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.mark.torch
@pytest.mark.slow
def test_another_interpreter_measures_what_this_one_does(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = json.loads(measure("quick").read_bytes())
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise SystemExit('shadowed')")
    said: list[str] = []
    data = local.run(job(sys.executable), said.append)
    found = json.loads(data)
    assert [line for line in said if line.startswith("probe [")][-1] == "probe [11/11] fresh process"
    assert (found["source"]["commit"], found["source"]["dirty"], found["image"]) == ("c" * 40, True, None)
    assert found["source"]["probe_sha256"] == here["source"]["probe_sha256"]
    assert found["stages"] == here["stages"]
    assert found["packages"] == here["packages"]
    assert not any(secret in data.decode() + "\n".join(said) for secret in SECRETS.values())


def test_a_prefix_behind_which_the_probe_side_is_not_seen_is_told(tmp_path: Path) -> None:
    hide = ["sh", "-c", 'rm "$4/reprokit-probe-side"; exec "$0" "$@"']
    with pytest.raises(ProbeFailed, match="is not seen where the interpreter runs"):
        local.run(Job(["--profile", "quick"], {}, hide, sys.executable, 60.0, {}), lambda line: None)
