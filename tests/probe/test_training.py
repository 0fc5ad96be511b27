"""`training.*`: what the written-out parts compute, and faults that only some stages see."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from reprokit.probe.lfq import model, training  # noqa: E402
from reprokit.probe.recorder import Recorder  # noqa: E402
from tests.probe.planting import honest, measured, moved  # noqa: E402

pytestmark = pytest.mark.torch


def part():
    return training.training_stages(torch.device("cpu"), 0)


@pytest.fixture(autouse=True, scope="module")
def measured_before_anything_is_planted():
    honest("training")


@pytest.fixture(scope="module")
def records():
    recorder = Recorder()
    recorder.run(part())
    return recorder.records


def test_every_stage_can_move_and_keeps_its_bound(records):
    assert {record["state"] for record in records.values()} == {"ok"}
    assert records["training.slopes"]["bound"]["holds"]
    assert records["training.slopes"]["bound"]["ratio"] < 0.01
    assert records["training.resumed"]["bound"] == {"ratio": 0.0, "holds": True}
    assert records["training.resumed"]["invariance"]["equal"]


def test_it_learns(records):
    losses = records["training.losses"]["sketch"]["samples"]
    assert losses[-1] < 0.7 * losses[0]
    assert losses[0] == pytest.approx(math.log(64), abs=1)


def test_the_scale_adapts(records):
    scales = records["training.scaled.scales"]["sketch"]["samples"]
    assert scales[0] == 2.0**20
    assert min(scales) < scales[0]  # it overflowed
    assert any(later == 2 * earlier for earlier, later in itertools.pairwise(scales))


def test_a_step_is_adamw():
    """Against torch's own, in a process that may import it."""
    weights = {"w": torch.linspace(-1, 1, 32, dtype=torch.float64)}
    state = training.State(
        weights, {"w": torch.zeros_like(weights["w"])}, {"w": torch.zeros_like(weights["w"])}
    )
    theirs = weights["w"].clone().requires_grad_()
    optimiser = torch.optim.AdamW(
        [theirs], training.RATE, training.BETAS, training.EPSILON, weight_decay=training.DECAY
    )
    for turn in range(5):
        gradient = torch.cos(turn + torch.arange(32, dtype=torch.float64))
        theirs.grad = gradient
        optimiser.step()
        state = training.stepped(state, {"w": gradient})
    torch.testing.assert_close(state.weights["w"], theirs.detach(), rtol=1e-12, atol=1e-12)


def test_the_gradient_passes_straight_through():
    weight = torch.linspace(-3, 3, 64).reshape(2, 32).requires_grad_()
    rounded = training.straight_through(weight)
    (2 * rounded).sum().backward()
    assert not torch.equal(rounded, weight)
    assert weight.grad.unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("state", "overflowed", "scale", "steady"),
    [
        ((8.0, 0), True, 4.0, 0),
        ((8.0, 0), False, 8.0, 1),
        ((8.0, 1), False, 16.0, 0),
        ((8.0, 1), True, 4.0, 0),
    ],
)
def test_the_grad_scaler(state, overflowed, scale, steady):
    before = training.State({}, {}, {}, scale=state[0], steady=state[1])
    after = training.rescaled(before, overflowed)
    assert (after.scale, after.steady) == (scale, steady)


def test_dropout_left_on_moves_what_is_computed_without_it(monkeypatch):
    dropout = F.dropout
    monkeypatch.setattr(F, "dropout", lambda x, p, training: dropout(x, p, True))
    found = moved("training")
    assert "training.evaluation" in found
    assert found[0] == "training.gradients.1x8.embedding"
    assert "training.losses" not in found


def test_dropout_left_on_in_evaluation_moves_evaluation_alone(monkeypatch):
    class Careless(training.Trained):
        learning = True

    evaluated = training.evaluated

    def careless(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(training, "Trained", Careless)
            return evaluated(*arguments, **options)

    monkeypatch.setattr(training, "evaluated", careless)
    assert moved("training") == ["training.evaluation", "rng.after.training"]


def test_a_checkpoint_without_the_generator_moves_what_resumes(monkeypatch):
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    assert moved("training") == ["training.resumed"]


def test_a_checkpoint_without_the_moments_moves_what_resumes(monkeypatch):
    load = torch.load

    def forgetful(*arguments, **options):
        read = load(*arguments, **options)
        read["state"]["second"] = {
            name: torch.zeros_like(value) for name, value in read["state"]["second"].items()
        }
        return read

    monkeypatch.setattr(torch, "load", forgetful)
    assert moved("training") == ["training.resumed"]


def test_accumulation_in_another_order_moves_the_accumulated_gradients(monkeypatch):
    chunk = torch.Tensor.chunk
    monkeypatch.setattr(
        torch.Tensor,
        "chunk",
        lambda self, parts, dim=0: chunk(self, parts, dim)[::-1] if parts == 4 else chunk(self, parts, dim),
    )
    found = moved("training")
    assert found
    assert all(name.startswith("training.gradients.4x2.") for name in found)


def test_a_wrong_gradient_breaks_its_bound(monkeypatch):
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x.relu()

        @staticmethod
        def backward(context, gradient):
            return gradient  # as if every unit were active

    monkeypatch.setattr(model.F, "gelu", Careless.apply)
    analytic, numeric = training.directional(torch.device("cpu"))
    assert float(((analytic - numeric).abs() / (training.AGREE * (1 + analytic.abs()))).max()) > 1


def test_another_seed_moves_what_is_drawn_and_no_gradient_of_the_start():
    other = measured("training", seed=1)
    same = {name for name, found in honest("training").items() if other[name] == found}
    assert same == {name for name in other if name.startswith(("training.gradients.", "training.slopes"))}
