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
from tests import processes

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
    assert (one.probe.repeats, one.probe.loaded, one.probe.fresh) == (2, 1, 1)


def test_a_fingerprint_is_canonical_and_private(measure):
    data = measure("quick").read_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode() + b"\n"
    for secret in (os.uname().nodename, str(Path.cwd()), str(Path.home()), sys.prefix):
        assert len(secret) < 4 or secret.encode() not in data


def test_no_stage_is_unstable_and_most_can_move(measure):
    stages = load(measure("full")).stages
    assert [stage.name for stage in stages if stage.state == "unstable"] == []
    assert {stage.reason for stage in stages if stage.state == "unavailable"} == {"needs a GPU"}
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
    for folder in (tmp_path, ""):
        done = run("probe", "-o", folder)
        assert done.returncode == 2
        assert "is a folder; name a file" in done.stderr or "is a directory" in done.stderr
        assert "invariant" not in done.stderr


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
def probe_that_cannot_finish(folder):
    """A command, its recording process and a fresh one that hangs, until the last step waits for it."""
    with processes.hanging(folder, "--hashes", *COMMAND[3:], folder / "x.json") as probe:
        assert len(probe.processes) == 3
        yield probe


@processes.linux
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["[1/11] invariant", "[11/11] fresh process"])
def test_an_ended_probe_ends_all_its_processes(tmp_path, end, step):
    with probe_that_cannot_finish(tmp_path) as probe:
        assert f"probe {step}\n" in probe.lines()
        probe.command.send_signal(end)
        assert probe.ended() == set(probe.processes)
        assert probe.command.wait() == 130
        assert list(probe.lines())[-1] == "reprokit: interrupted\n"
    assert not (tmp_path / "x.json").exists()


@processes.linux
@pytest.mark.parametrize("step", ["[1/11] invariant", "[11/11] fresh process"])
def test_a_killed_command_leaves_no_process(tmp_path, step):
    with probe_that_cannot_finish(tmp_path) as probe:
        assert f"probe {step}\n" in probe.lines()
        probe.command.kill()
        assert probe.ended() == set(probe.processes)
    assert not (tmp_path / "x.json").exists()


@processes.linux
def test_a_killed_probe_side_is_named_by_its_signal_and_leaves_no_process(tmp_path):
    with probe_that_cannot_finish(tmp_path) as probe:
        assert "probe [11/11] fresh process\n" in probe.lines()
        os.kill(list(probe.processes)[1], signal.SIGKILL)
        assert probe.ended() == set(probe.processes)
        assert probe.command.wait() == 3
        assert "the probe was ended by SIGKILL during fresh process" in list(probe.lines())[-1]


def test_the_wait_policy_of_the_probe_is_not_called_requested(measure):
    assert "OMP_WAIT_POLICY" not in load(measure("quick")).variables


def test_the_largest_seed_is_that_of_the_document():
    from reprokit.cli.probe import probe_command
    from reprokit.model.fingerprint import MAX_SEED

    (seed,) = (option for option in probe_command.params if option.name == "seed")
    assert seed.type.max == MAX_SEED


@pytest.fixture(scope="module")
def both(run, tmp_path_factory):
    """What `--mode both` printed, and its fingerprints of mode default and of mode strict."""
    folder = tmp_path_factory.mktemp("both")
    done = run("probe", "-o", folder / "now.json", "--profile", "quick", "--mode", "both")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"now.default.json", "now.strict.json"}
    return done.stderr, load(folder / "now.default.json"), load(folder / "now.strict.json")


def test_both_modes_are_two_documents_each_of_its_own_class(both):
    _, default, strict = both
    assert default.class_key.endswith(", mode default")
    assert strict.class_key == default.class_key.replace(", mode default", ", mode strict")
    assert (default.probe.mode, strict.probe.mode) == ("default", "strict")


def test_the_switches_are_on_in_strict_alone(both):
    _, default, strict = both
    for found, on in ((default, False), (strict, True)):
        assert found.torch.deterministic_algorithms is on
        assert found.torch.cudnn.deterministic is on
        assert found.torch.cudnn.allow_tf32 is not on
        assert found.torch.attention.flash is not on
        assert found.torch.matmul.bf16_reduced_precision_reduction is not on
        assert ("CUBLAS_WORKSPACE_CONFIG" in found.variables) is on
    assert strict.variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert strict.variables["PYTHONHASHSEED"] == "0"
    assert strict.torch.attention.math is True


def test_the_two_modes_are_a_pair(both):
    from reprokit.compare.modes import no_pair

    assert no_pair(*both[1:]) is None


def test_what_strict_costs_is_measured_there_alone_and_told(both):
    told, default, strict = both
    assert default.run.mode_cost is None
    cost = strict.run.mode_cost
    assert min(cost.default_seconds, cost.strict_seconds) > 0
    (line,) = (line for line in told.splitlines() if "costs" in line)
    ratio = cost.strict_seconds / cost.default_seconds
    assert line == f"mode strict costs {ratio:.2f} × the time of default (kernels and one forward pass)"


def test_two_strict_probes_give_one_digest(both, measure):
    strict = load(measure("quick", "--mode", "strict"))
    assert strict.digest == both[2].digest
    assert strict.digest != both[1].digest


def test_strict_numbers_are_no_less_stable(both):
    _, default, strict = both
    assert {stage.name for stage in strict.stages if stage.state == "unstable"} == set()
    assert [stage.name for stage in strict.stages] == [stage.name for stage in default.stages]


def test_where_strict_fails_the_document_of_default_stays(run, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'strict' in sys.orig_argv: os.write(2, b'no strict here\\n'); os._exit(9)\n"
    )
    command = ("probe", "-o", tmp_path / "now.json", "--profile", "quick", "--mode", "both")
    done = run(*command, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 3
    assert "no strict here" in done.stderr.splitlines()[-1]
    assert load(tmp_path / "now.default.json").probe.mode == "default"
    assert not (tmp_path / "now.strict.json").exists()


def test_neither_mode_is_measured_where_one_cannot_be_written(run, tmp_path):
    (tmp_path / "now.strict.json").mkdir()
    done = run("probe", "-o", tmp_path / "now.json", "--mode", "both")
    assert done.returncode == 2
    assert done.stderr == f"reprokit: {tmp_path}/now.strict.json: is a folder; name a file\n"
