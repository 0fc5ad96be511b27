"""`batch.*`: the invariance map, and faults that only some conditions see."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe.lfq import batch, data, model  # noqa: E402
from reprokit.probe.recorder import Recorder  # noqa: E402
from tests.probe.planting import honest, moved  # noqa: E402

pytestmark = pytest.mark.torch
CONFIG = model.Config()


def part():
    return batch.batch_stages(torch.device("cpu"), CONFIG)


@pytest.fixture(autouse=True, scope="module")
def measured_before_anything_is_planted():
    honest("batch")


@pytest.fixture(scope="module")
def records():
    recorder = Recorder()
    recorder.run(part())
    return recorder.records


@pytest.fixture(scope="module")
def forward():
    weights = model.quantised_weights(model.raw_weights(CONFIG))
    with torch.no_grad():
        yield model.Transformer(CONFIG, weights)


def test_every_stage_can_move_and_is_near_the_sample_alone(records):
    assert {record["state"] for record in records.values()} == {"ok"}
    for name, record in records.items():
        if ".alone." in name:
            assert "invariance" not in record
        else:
            operator, _, dtype = name.removeprefix("batch.").split(".")
            assert record["invariance"]["reference"] == f"batch.{operator}.alone.{dtype}"
            assert record["invariance"]["largest"] < (0.1 if dtype == "bf16" else 1e-3)


def test_the_map_has_every_condition(records):
    conditions = {name.split(".")[2] for name in records}
    assert conditions == {
        "alone", "of_2", "of_7", "of_8", "of_16", "padded_left", "padded_right", "cached", "warm",
        "split_at_1", "split_at_511",
    }  # fmt: skip


def test_padding_changes_nothing_but_rounding(forward):
    tokens = data.tokens(torch.device("cpu"))[:1]
    alone = forward(tokens)
    padding = torch.zeros(1, 5, dtype=torch.int64)
    present = torch.cat((torch.zeros(1, 5, dtype=torch.bool), torch.ones(1, 64, dtype=torch.bool)), dim=1)
    padded = forward(torch.cat((padding, tokens), dim=1), present)[:, 5:]
    assert not padded.isnan().any()
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-4)


def test_a_cache_changes_nothing_but_rounding(forward):
    tokens = data.tokens(torch.device("cpu"))
    kept = model.Cache()
    parts = [forward(part, cache=kept) for part in tokens.split([10, 1, 53], dim=1)]
    assert kept.length == 64
    torch.testing.assert_close(torch.cat(parts, dim=1), forward(tokens), rtol=1e-4, atol=1e-4)


def test_padding_that_is_attended_to_moves_the_padded_stages_alone(monkeypatch):
    attention = model.attention

    def seeing_padding(q, k, v, reverse=False, present=None):
        return attention(q, k, v, reverse, None)

    monkeypatch.setattr(model, "attention", seeing_padding)
    # behind the sample, padding is hidden by the causal mask
    assert moved("batch") == ["batch.logits.padded_left.fp32", "batch.logits.padded_left.bf16"]


def test_a_cache_that_forgets_moves_what_uses_one_alone(monkeypatch):
    def forgetful(self, layer, k, v):
        if layer in self._kept:
            k, v = (
                torch.cat((old[..., -1:, :], new), -2)
                for old, new in zip(self._kept[layer], (k, v), strict=True)
            )
        self._kept[layer] = k, v
        return k, v

    monkeypatch.setattr(model.Cache, "extended", forgetful)
    assert {name.split(".")[2] for name in moved("batch")} == {"cached", "split_at_511"}


def test_a_kernel_of_its_own_for_batches_moves_what_has_one(monkeypatch):
    softmax = torch.softmax

    def batched(x, dim=-1):
        return softmax(x, dim) if len(x) == 1 else softmax(x.flip(dim), dim).flip(dim)

    monkeypatch.setattr(torch, "softmax", batched)
    found = moved("batch")
    assert {name.split(".")[2] for name in found} == {"of_2", "of_7", "of_8", "of_16"}
    assert {name.split(".")[1] for name in found} == {"softmax", "logits"}
