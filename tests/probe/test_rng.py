"""Random streams: at which sizes they are drawn, from which generators, and what a part leaves of the global ones."""

import random
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reprokit.probe import generators  # noqa: E402
from reprokit.probe.hashing import sha256  # noqa: E402
from reprokit.probe.lfq import data, model, quantiser, rng  # noqa: E402
from reprokit.probe.recorder import Recorder  # noqa: E402
from tests.probe.planting import honest, measured, moved  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unspoilt():
    """The honest runs, before a test plants anything."""
    for part in ("rng", "data", "weights", "quantize"):
        honest(part)


def test_every_stream_moves_with_the_seed():
    recorder = Recorder()
    recorder.run(rng.rng_stages(CPU, 0, full=False))
    assert {stage["state"] for stage in recorder.trace()} == {"ok"}
    assert (
        len({stage["sha256"] for stage in recorder.trace()}) == len(recorder.trace()) - 3
    )  # see the next test


def test_a_global_generator_gives_the_stream_of_one_of_its_own():
    found = honest("rng")
    assert found["rng.python_global"] == found["rng.python"]
    assert found["rng.numpy_global"] == found["rng.numpy_legacy"]
    assert found["rng.torch_global"] == found["rng.torch_uniform"]


def test_sizes_stand_in_the_names():
    stages = {stage.name: stage for stage in rng.rng_stages(CPU, 0)}
    for name in (
        "rng.torch_normal.15",
        "rng.torch_normal.16",
        "rng.torch_normal.17",
        "rng.numpy_normal.1048577",
    ):
        assert stages[name].compute().shape == (int(name.split(".")[-1]),)
    assert {stage.name for stage in rng.rng_stages(CPU, 0, full=False)} == {
        name for name in stages if not name.endswith(".1048577")
    }


def test_from_16_elements_on_torch_draws_normal_numbers_in_another_way():
    streams = {n: rng.KINDS["normal"](n, torch.Generator().manual_seed(0)) for n in rng.VECTORS}
    assert (streams[16][:15] != streams[15]).any()
    assert (streams[17][1:16] != streams[16][1:]).any()


def test_a_gpu_is_measured_around_its_own_grid(monkeypatch):
    h200 = types.SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h200)
    gpu = torch.device("cuda")
    assert rng.grid_size(gpu) == 270_336
    names = [stage.name for stage in rng.rng_stages(gpu, 0)]
    for kind in rng.KINDS:
        borders = [name for name in names if name.startswith(f"rng.cuda_{kind}.")]
        ends = [name.rpartition(".")[2] for name in borders]
        assert ends == ["grid_minus_1", "grid", "grid_plus_1", "1048577"]
    quick = [stage.name for stage in rng.rng_stages(gpu, 0, full=False) if "cuda" in stage.name]
    assert not any("grid" in name for name in quick)
    assert "rng.cuda_normal" in quick
    assert not any("cuda" in stage.name for stage in rng.rng_stages(CPU, 0))


def test_streams_leave_the_global_generators_alone():
    generators.seed(3)
    before = generators.states(CPU)
    for stage in rng.rng_stages(CPU, 0, full=False):
        stage.compute()
        assert (generators.states(CPU) == before).all(), stage.name


def test_a_seeding_that_forgets_numpy_is_named(monkeypatch):
    def forgetful(value: int) -> None:
        random.seed(value)
        torch.manual_seed(value)

    with generators.kept():
        np.random.seed(99)
        monkeypatch.setattr(generators, "seed", forgetful)
        assert moved("rng") == ["rng.numpy_global", "rng.after.rng"]


DRAWS = {"Python": random.random, "NumPy": np.random.random, "torch": lambda: torch.rand(1)}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize(
    ("part", "owner", "name"),
    [
        ("data", data, "augmented"),
        ("weights", model, "quantised_weights"),
        ("quantize", quantiser, "quantise"),
    ],
)
def test_one_more_number_drawn_moves_what_its_part_leaves_and_nothing_else(
    monkeypatch, part, owner, name, draw
):
    honest_one = getattr(owner, name)

    def drawing(*arguments):
        draw()
        return honest_one(*arguments)

    monkeypatch.setattr(owner, name, drawing)
    assert moved(part) == [f"rng.after.{part}"]


def test_the_seed_moves_streams_alone():
    assert not set(measured("rng", 1).values()) & set(honest("rng").values())
    for part in ("data", "weights", "quantize"):
        other = measured(part, 1)
        differing = [name for name, value in other.items() if value != honest(part)[name]]
        assert differing == [f"rng.after.{part}"]


def test_streams_that_are_frozen_by_promise():
    generator = random.Random(0)
    assert honest("rng")["rng.python"] == sha256(np.array([generator.random() for _ in range(4099)]))
    assert honest("rng")["rng.numpy_legacy"] == sha256(np.random.RandomState(0).random_sample(4099))
