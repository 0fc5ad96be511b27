"""What a probe side says, and why it ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.engines.listening import SAYS, STEPS, Listener


def heard(*lines: str) -> tuple[Listener, list[str]]:
    said: list[str] = []
    listener = Listener(said.append)
    for line in lines:
        listener.hear(line)
    return listener, said


def test_steps_are_counted_and_other_lines_passed_on() -> None:
    _, said = heard(f"{SAYS}9 steps\n", f"{SAYS}invariant\n", "a warning\n", f"{SAYS}rng\n")
    assert said == ["probe [1/9] invariant", "a warning", "probe [2/9] rng"]


@pytest.mark.parametrize(
    ("lines", "code", "reason"),
    [
        ([f"{SAYS}rng", f"{SAYS}no torch", "a last warning"], 3, "no torch"),
        ([f"{SAYS}kernel"], -9, "the probe was ended by SIGKILL during kernel"),
        ([f"{SAYS}kernel"], 137, "the probe was ended by SIGKILL during kernel"),
        ([], -11, "the probe was ended by SIGSEGV during its start"),
        (["sh: python: not found"], 127, "the probe ended with exit code 127: sh: python: not found"),
        ([], 1, "the probe ended with exit code 1: it said nothing"),
        ([], 255, "the probe ended with exit code 255: it said nothing"),
    ],
)
def test_a_failure_has_a_reason(lines: list[str], code: int, reason: str) -> None:
    assert heard(*lines)[0].failure(code) == reason


@given(st.lists(st.text()), st.integers(-300, 300))
def test_any_lines_and_any_code_give_a_reason(lines: list[str], code: int) -> None:
    listener, said = heard(*lines)
    assert len(said) == len(lines)
    assert isinstance(listener.failure(code), str)


def test_no_more_than_the_last_lines_are_kept() -> None:
    listener, _ = heard(*(f"line {number}" for number in range(1000)))
    assert listener.text.splitlines() == [f"line {number}" for number in range(980, 1000)]


@pytest.mark.torch
def test_the_steps_are_those_of_the_probe() -> None:
    torch = pytest.importorskip("torch")
    from reprokit.probe.lfq.collective import Ranks
    from reprokit.probe.lfq.parts import parts

    device = torch.device("cpu")
    found = parts(device, "full", 0, Ranks(device, 0, "default", (1,)))
    assert (*found, "under load", "environment", "fresh process", "kernel names") == STEPS
    assert set(parts(device, "quick", 0)) < set(found)
