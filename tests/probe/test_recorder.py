"""The recorder: states of a stage, repeats and controls."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe.hashing import sha256  # noqa: E402
from reprokit.probe.recorder import (  # noqa: E402
    LOADED,
    Control,
    Recorder,
    Stage,
    StageFailed,
    Twin,
    Unavailable,
    hashes,
)

pytestmark = pytest.mark.torch
ONE, TWO = torch.ones(3), torch.full((3,), 2.0)


def record(*stages: Stage, repeats: int = 2, fresh: dict[str, str] | None = None) -> dict:
    recorder = Recorder()
    recorder.run(stages)
    for _ in range(repeats):
        recorder.repeat(stages)
    recorder.add_fresh(hashes(stages) if fresh is None else fresh)
    return {stage["name"]: stage for stage in recorder.trace()}


def test_a_steady_stage_is_ok():
    stage = record(Stage("a", "gemm", lambda: ONE, control=Control("two for one", lambda: TWO)))["a"]
    assert (stage["state"], stage["sha256"], stage["dtype"], stage["shape"]) == (
        "ok",
        sha256(ONE),
        "float32",
        [3],
    )
    assert stage["control"] == {"change": "two for one", "moved": True, "flipped": None}


def test_a_stage_that_its_control_does_not_move_is_blind():
    stage = record(Stage("a", "gemm", lambda: ONE, control=Control("nothing", lambda: ONE)))["a"]
    assert (stage["state"], stage["reason"]) == ("blind", "did not move under its control: nothing")


def test_repeats_that_differ_make_a_stage_unstable():
    values = itertools.cycle([ONE, ONE, TWO])
    stage = record(Stage("a", "gemm", lambda: next(values)), fresh={"a": sha256(ONE)})["a"]
    assert (stage["state"], stage["reason"]) == (
        "unstable",
        "2 different results in 4 runs, first within one process",
    )


def test_a_fresh_process_that_differs_makes_a_stage_unstable():
    stage = record(Stage("a", "gemm", lambda: ONE), fresh={"a": sha256(TWO)})["a"]
    assert (stage["state"], stage["reason"]) == (
        "unstable",
        "2 different results in 4 runs, first in a fresh process",
    )


def test_a_stage_that_the_fresh_process_lacks_is_unstable():
    assert record(Stage("a", "gemm", lambda: ONE), fresh={})["a"]["state"] == "unstable"


def test_a_stage_that_a_repeat_cannot_run_is_unstable():
    results = iter([ONE])

    def once() -> torch.Tensor:
        for result in results:
            return result
        raise Unavailable("no shared memory left")

    stage = record(Stage("a", "gemm", once), fresh={"a": sha256(ONE)})["a"]
    assert (stage["state"], stage["reason"]) == (
        "unstable",
        "2 different results in 4 runs, first within one process",
    )


def test_repeats_under_load_are_told_apart():
    recorder, values = Recorder(), itertools.cycle([ONE, ONE, TWO])
    stage = Stage("a", "gemm", lambda: next(values))
    recorder.run([stage])
    recorder.repeat([stage])
    recorder.repeat([stage], LOADED)
    assert recorder.trace()[0]["reason"] == "2 different results in 3 runs, first under load"


def test_a_result_is_held_against_its_twin():
    apart = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.5]])
    stages = record(
        Stage("a", "gemm", lambda: ONE, twin=Twin("b", lambda: ONE)),
        Stage("c", "gemm", lambda: apart, twin=Twin("b", lambda: ONE)),
    )
    assert stages["a"]["invariance"] == {"reference": "b", "equal": True, "largest": 0.0}
    assert stages["c"]["invariance"] == {"reference": "b", "equal": False, "largest": 0.5}


def test_what_a_control_draws_does_not_count_as_drawn():
    from reprokit.probe import generators

    generators.seed(0)
    before = generators.states(torch.device("cpu"))
    record(Stage("a", "rng", lambda: ONE, control=Control("a draw", lambda: torch.rand(3))))
    assert torch.equal(generators.states(torch.device("cpu")), before)


def test_what_has_no_deterministic_form_is_unavailable_where_only_such_may_run():
    def refused() -> torch.Tensor:
        raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set …")

    stage = record(Stage("a", "reduction", refused, races="torch.cumsum"))["a"]
    assert (stage["state"], stage["reason"]) == (
        "unavailable",
        "torch has no deterministic form of torch.cumsum",
    )
    assert stage["races"] == "torch.cumsum"


def test_of_a_known_answer_nothing_more_is_kept():
    stages = record(
        Stage("a", "gemm", lambda: ONE, invariant=True, answer=sha256(ONE)),
        Stage("b", "gemm", lambda: ONE, invariant=True, answer=sha256(TWO)),
    )
    assert stages["a"]["sketch"] is None
    assert stages["b"]["sketch"]["numel"] == 3


def test_a_blind_stage_that_differs_is_unstable():
    values = itertools.cycle([ONE, TWO])
    stage = Stage("a", "gemm", lambda: next(values), control=Control("nothing", lambda: ONE))
    assert record(stage)["a"]["state"] == "unstable"


def test_an_unavailable_stage_says_why():
    def missing() -> torch.Tensor:
        raise Unavailable("no FP8 on this architecture")

    stage = record(Stage("a", "gemm", missing))["a"]
    assert (stage["state"], stage["reason"], stage["sha256"]) == (
        "unavailable",
        "no FP8 on this architecture",
        None,
    )


def test_flipped_codes_are_counted():
    codes = torch.zeros(8, dtype=torch.uint8)
    moved = codes.clone()
    moved[:3] = 1
    stage = record(Stage("a", "quantize", lambda: codes, control=Control("reversed", lambda: moved)))["a"]
    assert stage["control"]["flipped"] == 3


def test_a_bound_is_kept_to_three_digits():
    stage = record(
        Stage("a", "gemm", lambda: ONE, bound=lambda y: 0.123456),
        Stage("b", "gemm", lambda: ONE, bound=lambda y: 1.5),
    )
    assert stage["a"]["bound"] == {"ratio": 0.123, "holds": True}
    assert stage["b"]["bound"] == {"ratio": 1.5, "holds": False}


def test_an_error_names_its_stage():
    def broken() -> torch.Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(StageFailed, match="stage a: RuntimeError: out of memory"):
        record(Stage("a", "gemm", broken))


def test_two_stages_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two stages are called a"):
        record(Stage("a", "gemm", lambda: ONE), Stage("a", "gemm", lambda: ONE))


def test_an_invariant_stage_without_an_answer_is_refused():
    with pytest.raises(ValueError, match="stage a is invariant and has no known answer"):
        record(Stage("a", "gemm", lambda: ONE, invariant=True))


def test_kind_and_known_answer():
    stage = record(Stage("a", "gemm", lambda: ONE, invariant=True, answer="sha256:" + "0" * 64))["a"]
    assert (stage["kind"], stage["expected"]) == ("invariant", "sha256:" + "0" * 64)
