"""`reprokit probe` on this machine: equal runs, broken surroundings, kills."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from reprokit.model.reading import read

pytestmark = pytest.mark.torch
COMMAND = [sys.executable, "-m", "reprokit", "probe", "--profile", "quick", "-o"]


def load(path):
    from reprokit.model.fingerprint import Fingerprint

    return read(path, Fingerprint)


def test_two_probes_give_one_digest(measure):
    one, two = load(measure("quick")), load(measure("quick", again=1))
    assert one.digest == two.digest
    assert one.run.started <= two.run.started
    assert one.logit_hash == {stage.name: stage for stage in one.stages}["logits"].sha256
    assert (one.probe.repeats, one.probe.fresh) == (3, 1)


def test_a_fingerprint_is_canonical_and_private(measure):
    data = measure("quick").read_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode() + b"\n"
    for secret in (os.uname().nodename, str(Path.cwd()), str(Path.home()), sys.prefix):
        assert len(secret) < 4 or secret.encode() not in data


def test_no_stage_is_unstable_and_most_can_move(measure):
    stages = load(measure("full")).stages
    assert {stage.name for stage in stages if stage.state in ("unstable", "unavailable")} == set()
    assert all(stage.sha256 == stage.expected for stage in stages if stage.kind == "invariant")
    assert all(stage.bound.holds for stage in stages if stage.bound is not None)
    blind = {stage.name for stage in stages if stage.state == "blind"}
    assert all(name.endswith(".fp8") for name in blind), blind
    assert not any(name.startswith("logits") for name in blind)


def test_quick_is_a_part_of_full(measure):
    quick, full = load(measure("quick")), load(measure("full"))
    shared = {stage.name: stage.sha256 for stage in full.stages}
    assert len(full.stages) > len(quick.stages)
    assert {stage.name: stage.sha256 for stage in quick.stages}.items() <= shared.items()


def test_the_seed_moves_random_stages_alone(measure):
    one, two = load(measure("quick")), load(measure("quick", "--seed", "1"))
    hashes = {stage.name: stage.sha256 for stage in two.stages}
    moved = {stage.name.split(".")[0] for stage in one.stages if stage.sha256 != hashes[stage.name]}
    assert moved == {"rng", "metrics"}
    assert (two.seeds.base, two.seeds.metrics) == (1, [1, 2, 3, 4, 5])


def test_a_users_modules_do_not_shadow_the_librarys(run, tmp_path, monkeypatch):
    for name in ("random.py", "torch.py", "numpy.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [Path(sys.executable).with_name("reprokit"), *COMMAND[3:], "x.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_gpu_that_is_not_there_is_no_drift(run, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run("probe", "-o", tmp_path / "x.json", "--device", "cuda")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].endswith("--device cuda: torch finds no usable GPU in this process")
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_without_torch_says_so(run, tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('none here', name='torch')")
    done = run("probe", "-o", tmp_path / "x.json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert "has no torch; the probe needs torch and numpy" in done.stderr.splitlines()[-1]


def test_an_output_that_cannot_be_written_is_told_before_the_work(run, tmp_path):
    done = run("probe", "-o", tmp_path / "missing" / "x.json")
    assert done.returncode == 2
    assert (
        done.stderr == f"reprokit: {tmp_path}/missing/x.json: the folder {tmp_path}/missing does not exist\n"
    )
    assert run("probe", "-o", tmp_path).returncode == 2


@pytest.mark.parametrize("step", [0, 4, 8, 10])
def test_a_killed_probe_leaves_no_document_or_a_whole_one(tmp_path, step):
    target = tmp_path / "x.json"
    with subprocess.Popen([*COMMAND, target], stderr=subprocess.PIPE, text=True) as probe:
        assert probe.stderr is not None
        for _ in range(step):
            probe.stderr.readline()
        probe.send_signal(signal.SIGKILL)
        probe.stderr.close()
    if target.exists():
        load(target)


@contextmanager
def started(output, **variables):
    """A running probe that has said its first line, its standard error a pipe."""
    with subprocess.Popen(
        [*COMMAND, output], stderr=subprocess.PIPE, text=True, env=os.environ | variables
    ) as probe:
        assert probe.stderr is not None
        probe.stderr.readline()
        yield probe


def processes_marked(mark: str) -> set[int]:
    """Processes, other than this one, that have `mark` in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is another user's
    return found


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_probe_ends_all_its_processes(tmp_path, end):
    mark = f"REPROKIT_TEST_MARK={tmp_path}"
    with started(tmp_path / "x.json", REPROKIT_TEST_MARK=str(tmp_path)) as probe:
        assert len(processes_marked(mark)) == 3, "the command, the recording process and the fresh one"
        probe.send_signal(end)
        rest = probe.stderr.read()
    assert probe.returncode == 130
    assert rest.splitlines()[-1] == "reprokit: interrupted"
    for _ in range(1000):  # the kernel takes its time to collect them
        if not processes_marked(mark):
            break
        os.sched_yield()
    assert processes_marked(mark) == set()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_probe_side_is_named_by_its_signal(tmp_path):
    mark = f"REPROKIT_TEST_MARK={tmp_path}"
    with started(tmp_path / "x.json", REPROKIT_TEST_MARK=str(tmp_path)) as probe:
        recording = min(processes_marked(mark) - {probe.pid})
        os.kill(recording, signal.SIGKILL)
        rest = probe.stderr.read()
    assert probe.returncode == 3
    assert "the probe was ended by SIGKILL during" in rest.splitlines()[-1]


def test_the_wait_policy_of_the_probe_is_not_called_requested(measure):
    assert "OMP_WAIT_POLICY" not in load(measure("quick")).variables


def test_the_largest_seed_is_that_of_the_document():
    from reprokit.cli.probe import probe_command
    from reprokit.model.fingerprint import MAX_SEED

    (seed,) = (option for option in probe_command.params if option.name == "seed")
    assert seed.type.max == MAX_SEED
