"""`sampling.*`: the ways of choosing a token, and faults that only some of them see."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe.lfq import sampling  # noqa: E402
from reprokit.probe.recorder import Recorder  # noqa: E402
from tests.probe.planting import honest, measured, moved  # noqa: E402

pytestmark = pytest.mark.torch
LOGITS = torch.tensor([1.0, 3.0, 2.0, 3.0, -5.0])
NOTHING = torch.zeros(5)


def part():
    return sampling.sampling_stages(torch.device("cpu"), 0)


@pytest.fixture(autouse=True, scope="module")
def measured_before_anything_is_planted():
    honest("sampling")


def draw(way, drawn: float, logits=LOGITS, counts=NOTHING) -> int:
    return int(way(logits, counts, torch.tensor(drawn)))


def test_equals_are_ranked_in_their_order():
    assert sampling.ranked(LOGITS).tolist() == [1, 3, 2, 0, 4]
    assert draw(sampling.greedy, 0.99) == 1


@pytest.mark.parametrize(("drawn", "token"), [(0.0, 0), (0.249, 0), (0.25, 1), (0.999, 2)])
def test_the_first_whose_cumulated_probability_exceeds_the_number(drawn, token):
    assert int(sampling.drawn_from(torch.tensor([0.25, 0.25, 0.5]), torch.tensor(drawn))) == token


def test_a_number_beyond_a_sum_that_rounds_down_takes_the_last():
    assert int(sampling.drawn_from(torch.tensor([0.5, 0.4999]), torch.tensor(0.99999))) == 1


def test_top_k_never_leaves_the_best(monkeypatch):
    monkeypatch.setattr(sampling, "TOP_K", 2)
    assert {draw(sampling.top_k, drawn / 100) for drawn in range(100)} == {1, 3}


def test_top_p_keeps_the_fewest_that_reach_it(monkeypatch):
    monkeypatch.setattr(sampling, "TOP_P", 0.7)  # the two best have 0.39 each
    assert {draw(sampling.top_p, drawn / 100) for drawn in range(100)} == {1, 3}


def test_penalties_are_taken_once_and_each_time():
    counts = torch.tensor([0.0, 100.0, 0.0, 1.0, 0.0])
    frequent = {draw(sampling.frequency, drawn / 100, counts=counts) for drawn in range(100)}
    assert 1 not in frequent
    assert {1, 3} <= {draw(sampling.presence, drawn / 100, counts=counts) for drawn in range(100)}


def test_every_stage_can_move_and_a_round_repeats_itself():
    recorder = Recorder()
    recorder.run(part())
    assert {record["state"] for record in recorder.records.values()} == {"ok"}
    assert recorder.records["sampling.rounds.unique"]["sketch"]["samples"] == [1.0] * 6
    assert recorder.records["sampling.greedy.margins"]["sketch"]["minimum"] > 0


def test_an_unstable_top_k_moves_the_choice_between_ties_alone(monkeypatch):
    """Equal logits in another order: the honest texts have none."""
    monkeypatch.setattr(
        sampling,
        "ranked",
        lambda logits: len(logits) - 1 - torch.sort(logits.flip(-1), descending=True, stable=True).indices,
    )
    assert moved("sampling") == ["sampling.ties.tokens"]


def test_the_last_of_equals_moves_the_choice_between_ties_alone(monkeypatch):
    argmax = torch.Tensor.argmax
    monkeypatch.setattr(torch.Tensor, "argmax", lambda self: len(self) - 1 - argmax(self.flip(-1)))
    assert moved("sampling") == ["sampling.ties.tokens"]


def test_another_temperature_moves_its_own_text(monkeypatch):
    monkeypatch.setattr(sampling, "TEMPERATURE", 0.8)
    assert moved("sampling") == ["sampling.temperature.tokens", "sampling.temperature.margins"]


def test_a_dropped_penalty_moves_its_own_text(monkeypatch):
    monkeypatch.setattr(sampling, "FREQUENCY", 0.0)
    assert moved("sampling") == ["sampling.frequency.tokens", "sampling.frequency.margins"]


def test_rounds_without_a_seed_give_several_texts(monkeypatch):
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, generator=None: rand(*shape))
    found = moved("sampling")
    assert "sampling.rounds.unique" in found
    assert "sampling.greedy.tokens" not in found


def test_another_seed_moves_no_greedy_text():
    other = measured("sampling", seed=1)
    same = {name for name, found in honest("sampling").items() if other[name] == found}
    assert same == {"sampling.greedy.tokens", "sampling.greedy.margins", "sampling.rounds.unique"}
