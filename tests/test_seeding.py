"""`reprokit.seed_everything`: what it sets, what it says of what it cannot set, and how it is undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from reprokit import seeding  # noqa: E402

SET = ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC")
# What a user's script sees: before, after, without the switches for a block, and after that block.
SCRIPT = """
import json, random, sys
import reprokit
imported = [name for name in sys.modules if name.startswith("reprokit.")]
import numpy, torch
from reprokit import seeding
def seen():
    backends, cuda = torch.backends, torch.backends.cuda
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": [backends.cudnn.deterministic, backends.cudnn.benchmark, backends.cudnn.allow_tf32],
        "tf32": [cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()],
        "fp16": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "attention": [cuda.math_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()],
    }
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("medium")
before = seen()
done = reprokit.seed_everything(7)
after = seen()
drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
again = reprokit.seed_everything(7)
drawn_again = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
with seeding.without_switches():
    without = seen()
print(json.dumps({
    "imported": imported, "before": before, "after": after, "without": without, "restored": seen(),
    "drawn": drawn, "drawn again": drawn_again, "too late": done.too_late, "applied": done.applied,
    "equal": done == again, "cuda": torch.cuda.is_initialized(),
    "heavy": [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules],
}))
"""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """What a script sees that was started as it should be."""
    variables = {name: value for name, value in os.environ.items() if name not in SET}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env=variables | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a call in this process sets is undone."""
    for name in (*SET, "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(seeding, "_before", {})
    monkeypatch.setattr(seeding, "_missed_workspace", False)
    switches = seeding._switches()
    values = seeding._read(switches)
    yield
    seeding._write(switches, values)


def called(seed: int, deterministic: bool = True) -> tuple[seeding.Seeding, list[str]]:
    """What a call returns, and its warnings."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        done = seeding.seed_everything(seed, deterministic)
    assert all(warning.category is RuntimeWarning and warning.filename == __file__ for warning in heard)
    return done, [str(warning.message) for warning in heard]


def test_every_switch_is_on(script: dict[str, Any]) -> None:
    assert script["after"] == {
        "algorithms": True,
        "warn only": False,
        "fill": True,
        "cudnn": [True, False, False],
        "tf32": [False, "highest"],
        "fp16": False,
        "bf16": False,
        "attention": [True, False, False],
    }


def test_the_old_and_the_new_settings_of_tf32_agree_for_whoever_reads_them(script: dict[str, Any]) -> None:
    assert script["before"]["tf32"] == [True, "medium"]
    assert script["after"]["tf32"] == [False, "highest"]


def test_switched_off_for_a_block_everything_is_as_it_was_and_then_as_it_is(script: dict[str, Any]) -> None:
    assert script["without"] == script["before"]
    assert script["without"]["cudnn"][1], "what the user had set comes back, and no default"
    assert script["restored"] == script["after"]


def test_a_seed_gives_equal_numbers_in_every_library(script: dict[str, Any]) -> None:
    assert script["drawn"] == script["drawn again"]
    assert script["drawn"][0] == 0.32383276483316237  # random.Random(7).random()
    assert script["equal"]


def test_nothing_is_too_late_in_a_process_that_was_started_for_it(script: dict[str, Any]) -> None:
    assert script["too late"] == []
    assert {"random", "numpy", "torch", *SET, "deterministic_algorithms", "cudnn.benchmark"} <= {
        *script["applied"]
    }


def test_it_starts_no_cuda_and_imports_nothing_that_costs_seconds(script: dict[str, Any]) -> None:
    assert (script["imported"], script["cuda"], script["heavy"]) == ([], False, [])


def test_the_package_exports_it_and_nothing_else() -> None:
    import reprokit

    assert reprokit.seed_everything is seeding.seed_everything
    assert reprokit.Seeding is seeding.Seeding
    with pytest.raises(AttributeError, match="module 'reprokit' has no attribute 'seed_anything'"):
        _ = reprokit.seed_anything  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(TypeError, match=f"a seed is an int, and {seed!r} is of type {type(seed).__name__}"):
        seeding.seed_everything(seed)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_not_every_library_takes_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"a seed is from 0 to 4294967295, and {seed} is not"):
        seeding.seed_everything(seed)


@pytest.mark.usefixtures("restored")
def test_another_hash_seed_is_told_with_the_command_that_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "4")
    done, heard = called(3)
    assert list(done.too_late) == heard
    assert len(heard) == 1
    assert heard[0].endswith("start it as `PYTHONHASHSEED=3 python …`")


@pytest.mark.usefixtures("restored")
def test_a_hash_seed_of_zero_that_was_set_after_the_start_is_seen_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not sys.flags.hash_randomization:
        pytest.skip("this interpreter was started with the hash seed 0")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert "not started with PYTHONHASHSEED=0" in called(0)[1][0]


@pytest.mark.usefixtures("restored")
def test_a_started_cuda_without_workspace_is_too_late_however_often_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for _ in range(2):
        done, heard = called(3)
        assert any(
            "CUDA was started before CUBLAS_WORKSPACE_CONFIG was set" in sentence for sentence in heard
        )
        assert "CUBLAS_WORKSPACE_CONFIG" not in done.applied
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8", "a program that this one starts is in time"


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("given", "kept"), [(":16:8", ":16:8"), (":4096:8", ":4096:8"), (":0:0", ":4096:8")])
def test_a_workspace_that_is_deterministic_is_kept(
    monkeypatch: pytest.MonkeyPatch, given: str, kept: str
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
    assert seeding.variables(5) == {"PYTHONHASHSEED": "5", "CUBLAS_WORKSPACE_CONFIG": kept}
    assert "CUBLAS_WORKSPACE_CONFIG" in called(3)[0].applied
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == kept


@pytest.mark.usefixtures("restored")
def test_without_determinism_it_only_seeds() -> None:
    before = seeding._read(seeding._switches())
    done, _ = called(3, deterministic=False)
    assert done.applied == ("random", "torch", "numpy")
    assert not done.deterministic
    assert seeding._read(seeding._switches()) == before
    assert not [name for name in SET if name in os.environ]


@pytest.mark.usefixtures("restored")
def test_without_numpy_the_rest_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert called(3, deterministic=False)[0].applied == ("random", "torch")


def test_an_older_torch_gets_the_switches_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 has no `fp32_precision`, no split over K, no fp16 accumulation."""
    state: dict[str, Any] = {}

    def told(name: str, value: Any) -> Callable[[], Any]:
        return lambda: state.get(name, value)

    def heard(name: str) -> Callable[[Any], None]:
        return lambda value: state.update({name: value})

    pairs = {"math": True, "flash": True, "mem_efficient": True, "cudnn": True}
    matmul = SimpleNamespace(
        allow_fp16_reduced_precision_reduction=True, allow_bf16_reduced_precision_reduction=True
    )
    cuda = SimpleNamespace(
        matmul=matmul,
        **{f"{name}_sdp_enabled": told(name, value) for name, value in pairs.items()},
        **{f"enable_{name}_sdp": heard(name) for name in pairs},
    )
    cudnn = SimpleNamespace(deterministic=False, benchmark=False, allow_tf32=True)
    old = SimpleNamespace(
        backends=SimpleNamespace(cuda=cuda, cudnn=cudnn, mkldnn=SimpleNamespace()),
        get_deterministic_debug_mode=told("debug", 0),
        set_deterministic_debug_mode=heard("debug"),
        get_float32_matmul_precision=told("precision", "high"),
        set_float32_matmul_precision=heard("precision"),
    )
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "torch", old)
        switches = seeding._switches()
    names = {switch.name for switch in switches}
    assert not [name for name in names if "fp32_precision" in name or name.startswith("mkldnn")]
    before = seeding._read(switches)
    seeding._write(switches, {switch.name: switch.wanted for switch in switches if "fill" not in switch.name})
    assert state == {
        "debug": "error",
        "precision": "highest",
        "math": True,
        "flash": False,
        "mem_efficient": False,
        "cudnn": False,
    }
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (True, False, False)
    assert matmul.allow_fp16_reduced_precision_reduction is False
    seeding._write(switches, before)
    assert (cudnn.allow_tf32, matmul.allow_bf16_reduced_precision_reduction) == (True, True)


def test_an_old_setting_that_refuses_to_be_read_is_left_out() -> None:
    def refuse() -> Any:
        raise RuntimeError("you have used mix of the legacy and new APIs to set the TF32 status")

    written: list[Any] = []
    switches = [
        seeding._Switch("a", refuse, written.append, 1),
        seeding._Switch("b", lambda: 2, written.append, 3),
    ]
    assert seeding._read(switches) == {"b": 2}
    seeding._write(switches, seeding._read(switches))
    assert written == [2]


@pytest.mark.usefixtures("restored")
def test_a_compiler_that_is_loaded_already_is_switched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(deterministic=False)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    assert "inductor.deterministic" in called(3)[0].applied
    assert config.deterministic is True
    with seeding.without_switches():
        assert config.deterministic is False
    assert config.deterministic is True
