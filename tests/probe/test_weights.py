"""Weights: a wrong checkpoint, a lost dtype and an average taken for the weights each move their own stages."""

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe.lfq import checkpoint, model  # noqa: E402
from tests.probe.planting import honest, moved  # noqa: E402

pytestmark = pytest.mark.torch
raw_weights = model.raw_weights
NAMES = list(raw_weights(model.Config()))
SECTIONS = [f"weights.checkpoint.{section}" for section in checkpoint.SECTIONS]


@pytest.fixture(autouse=True)
def unspoilt():
    """The honest run, before a test plants anything."""
    honest("weights")


def stages_of(*names: str) -> list[str]:
    return [f"weights.{name}{kind}" for name in names for kind in ("", ".quantised", ".ema")]


def test_averaged_weights_loaded_for_raw_ones(monkeypatch):
    monkeypatch.setattr(model, "raw_weights", lambda config: checkpoint.moving_average(raw_weights(config)))
    assert moved("weights") == stages_of(*NAMES) + SECTIONS


def test_one_tensor_through_half_precision(monkeypatch):
    def rounded(config):
        weights = raw_weights(config)
        return {**weights, "layer0.attention_out": weights["layer0.attention_out"].half().float()}

    monkeypatch.setattr(model, "raw_weights", rounded)
    assert moved("weights") == stages_of("layer0.attention_out") + SECTIONS


def test_one_tensor_stored_in_half_precision(monkeypatch):
    def stored(config):
        weights = raw_weights(config)
        return {**weights, "layer0.attention_out": weights["layer0.attention_out"].half()}

    monkeypatch.setattr(model, "raw_weights", stored)
    assert moved("weights") == ["weights.dtypes", *stages_of("layer0.attention_out"), *SECTIONS]


def test_a_dtype_alone_is_seen(monkeypatch):
    """Values that half precision holds exactly, stored in it: the same numbers, another dtype."""
    weights = {"a": torch.ones(2), "b": torch.ones(2)}
    assert checkpoint.dtypes(weights).tolist() == [0, 0]
    assert checkpoint.dtypes({**weights, "b": torch.ones(2).half()}).tolist() == [0, 2]
    assert checkpoint.dtypes({"a": torch.ones(2, dtype=torch.complex64)}).tolist() == [-1]
    single, half = (
        checkpoint.digests({"b": torch.ones(2, dtype=dtype)}) for dtype in (torch.float32, torch.half)
    )
    assert (single != half).any()


def test_two_weights_that_changed_their_names():
    first, second = torch.zeros(2), torch.ones(2)
    assert (
        checkpoint.digests({"a": first, "b": second}) != checkpoint.digests({"a": second, "b": first})
    ).any()


def test_a_reader_that_takes_the_average_for_the_model(monkeypatch):
    read = checkpoint.written_and_read

    def wrong(weights):
        found = read(weights)
        return {**found, "model": {**found["model"], **found["ema"]}}

    monkeypatch.setattr(checkpoint, "written_and_read", wrong)
    assert moved("weights") == ["weights.checkpoint.model"]


def test_an_optimiser_whose_steps_start_over(monkeypatch):
    read = checkpoint.written_and_read

    def started_over(weights):
        found = read(weights)
        for state in found["optimizer"]["state"].values():
            state["step"].zero_()
        return found

    monkeypatch.setattr(checkpoint, "written_and_read", started_over)
    assert moved("weights") == ["weights.checkpoint.optimizer"]


def test_the_average_by_exact_fractions():
    weight = raw_weights(model.Config())["head"]
    average = checkpoint.moving_average({"head": weight})["head"]

    def single(x: Fraction) -> Fraction:
        return Fraction(torch.tensor(float(x), dtype=torch.float64).float().item())

    for row, column in ((0, 0), (3, 77), (255, 127)):
        w, step = (Fraction(weight[r, column].item()) for r in (row, row - 1))
        steps = [single(w - step / 128 * age) for age in (4, 2, 1, 0)]  # float64 holds each difference
        expected = steps[0]
        for one in steps[1:]:
            expected = single((expected + one) / 2)
        assert Fraction(average[row, column].item()) == expected


def test_what_comes_back_from_the_file():
    weights = raw_weights(model.Config())
    found = checkpoint.written_and_read(weights)
    for name, weight in weights.items():
        assert torch.equal(found["model"][name], weight)
    bits = [code & 0xFFFFFFFF for code in found["model"]["special"].view(torch.int32).tolist()]
    assert bits == [0, 1 << 31, 1, 1 << 31 | 1, 1 << 23, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
    kinds = {tensor.dtype for tensor in found["model"].values()}
    assert kinds >= {torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64}
    state = found["optimizer"]["state"][0]
    g1, g2 = (weights["embedding"].roll(turn, 0).double() / 128 for turn in (1, 2))
    assert torch.equal(state["exp_avg"], (g1 / 4 + g2 / 2).float())
    assert torch.equal(state["exp_avg_sq"], ((g1 * g1).float() / 4 + (g2 * g2).float() / 2))
    assert state["step"].item() == 2
    numbers = checkpoint._flat(found["optimizer"]["param_groups"])
    assert numbers[".0.lr"].item() == 2.0**-10
    assert numbers[".0.params.10"].item() == 10


def test_narrow_dtypes_hold_what_was_put_into_them():
    narrow = checkpoint._of_every_dtype()
    for name in ("bfloat16", "float16"):
        assert torch.equal(narrow[f"narrow.{name}"].double(), narrow["narrow.float64"])
