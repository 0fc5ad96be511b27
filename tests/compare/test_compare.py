"""Levels and verdicts over planted faults."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reprokit.compare import EXIT_CODES, compare
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.comparison import Comparison, StageComparison
from tests.compare import builders
from tests.compare.builders import changed, changed_all, fingerprint, jittered, moved, numbers_of


def held(head_stages: list[dict[str, Any]] | None = None, level: Any = "bit", **head: Any) -> Comparison:
    return compare(fingerprint(), fingerprint(head_stages, **head), level)


def row(comparison: Comparison, name: str) -> StageComparison:
    return next(stage for stage in comparison.stages if stage.name == name)


def levels(comparison: Comparison) -> list[bool]:
    return [level.holds for level in comparison.levels]


def reasons(comparison: Comparison, level: int) -> str:
    return "; ".join(comparison.levels[level].reasons)


def test_equal_fingerprints_hold_at_every_level() -> None:
    found = held()
    assert levels(found) == [True, True, True]
    assert found.verdict.state == "holds"
    assert found.diagnosis.class_ is None
    assert EXIT_CODES[found.verdict.state] == 0


def test_the_comparison_is_sealed_and_the_same_twice() -> None:
    import msgspec

    first, second = held(moved("kernel.gemm.fp32")), held(moved("kernel.gemm.fp32"))
    assert first == second
    assert canonical.digest(msgspec.to_builtins(first)) == first.digest


def test_jitter_breaks_bit_and_keeps_process() -> None:
    found = held(moved("kernel.gemm.fp32", 1e-7))
    assert levels(found) == [False, True, True]
    assert found.verdict.level == "process"
    assert found.verdict.state == "drifted"
    assert held(moved("kernel.gemm.fp32", 1e-7), "process").verdict.state == "holds"


def test_tanh_gelu_breaks_process() -> None:
    found = held(moved("kernel.gelu.fp32", 1.7e-4), "process")
    assert levels(found) == [False, False, True]
    assert "kernel.gelu.fp32 is off by" in reasons(found, 1)


def test_minus_zero_is_another_hash_and_no_distance() -> None:
    base = fingerprint(changed("kernel.gemm.fp32", content=[0.0, 1.0]))
    head = fingerprint(changed("kernel.gemm.fp32", content=[-0.0, 1.0]))
    assert levels(compare(base, head)) == [False, True, True]


def test_permuted_elements_break_process() -> None:
    numbers = numbers_of("kernel.gemm.fp32")
    found = held(changed("kernel.gemm.fp32", content=[*numbers[256:], *numbers[:256]]), "process")
    assert not found.verdict.holds


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("state", ["ok", "blind"])
def test_new_nan_holds_at_no_level(value: float, state: str) -> None:
    numbers = [value, *numbers_of("kernel.gemm.fp32")[1:]]
    found = held(changed("kernel.gemm.fp32", content=numbers, state=state), "conclusion")
    assert levels(found) == [False, False, False]
    assert found.verdict.state == "drifted"
    assert row(found, "kernel.gemm.fp32").error is not None
    assert "NaN" in reasons(found, 2)


def test_a_stage_without_a_sketch_cannot_hide_a_nan() -> None:
    found = held(changed("kernel.gemm.fp32", sha256=builders.sha("x"), sketch=None), "conclusion")
    assert found.verdict.state == "drifted"


@pytest.mark.parametrize("how", ["missing", "unavailable"])
def test_a_stage_gone_holds_at_no_level(how: str) -> None:
    stages = [one for one in builders.trace() if one["name"] != "kernel.gemm.fp32"]
    stages += [builders.unavailable("kernel.gemm.fp32")] if how == "unavailable" else []
    found = held(stages, "conclusion")
    assert levels(found) == [False, False, False]
    assert row(found, "kernel.gemm.fp32").state == "gone"
    assert found.diagnosis.first_stage == "kernel.gemm.fp32"


def test_new_and_doubly_unavailable_stages_never_fail() -> None:
    base = [*builders.trace(), builders.unavailable("collective.sum"), builders.unavailable("kernel.fp8")]
    head = [*builders.trace(), builders.unavailable("collective.sum"), builders.stage("kernel.fp8")]
    head += [builders.stage("kernel.more")]
    found = compare(fingerprint(base), fingerprint(head))
    assert found.verdict.state == "holds"
    states = [row(found, name).state for name in ("collective.sum", "kernel.fp8", "kernel.more")]
    assert states == ["unavailable", "new", "new"]
    assert any("kernel.more" in warning for warning in found.warnings)


def test_a_new_stage_that_misses_its_known_answer_fails() -> None:
    stages = [
        *builders.trace(),
        builders.stage("invariant.more", kind="invariant", expected=builders.sha("right")),
    ]
    assert levels(held(stages)) == [False, False, False]


def test_other_version_is_no_baseline_unless_something_drifted() -> None:
    found = held(changed("kernel.gemm.fp32", version=2, sha256=builders.sha("new")))
    assert found.verdict.state == "no_baseline"
    assert EXIT_CODES[found.verdict.state] == 5
    assert levels(found) == [False, False, False]
    assert row(found, "kernel.gemm.fp32").state == "other_version"
    both = changed_all(
        {
            "kernel.gemm.fp32": {"version": 2, "sha256": builders.sha("new")},
            "kernel.softmax.fp32": {"content": jittered(numbers_of("kernel.softmax.fp32"), 1e-7)},
        }
    )
    assert held(both).verdict.state == "drifted"
    assert held(both, "process").verdict.state == "no_baseline"


def followed(*drifted: str, **fields: dict[str, Any]) -> Comparison:
    """What a second version of the first product of a layer gives, with all that follows from it moved."""
    names = ("layer0.attention.fp32", "logits", *drifted)
    moves = {name: {"content": jittered(numbers_of(name), 0.5)} for name in names}
    version = {"version": 2, "content": jittered(numbers_of("layer0.qkv.fp32"), 0.5)}
    return held(changed_all({"layer0.qkv.fp32": version, **moves, **fields}))


def test_what_only_follows_another_version_has_no_baseline_either() -> None:
    found = followed()
    assert found.verdict.state == "no_baseline"
    names = ("layer0.qkv.fp32", "layer0.attention.fp32", "logits")
    assert [row(found, name).difference for name in names] == ["unapproved"] * 3
    assert "logits follows a stage of another version" in reasons(found, 2)


def test_what_moves_beside_another_version_has_drifted() -> None:
    assert followed("kernel.gemm.fp32").verdict.state == "drifted"
    other = followed("weights.head")  # the logits consume it too
    assert row(other, "logits").difference == "drifted"
    nan = [math.nan, *numbers_of("logits")[1:]]
    assert followed(logits={"content": nan}).verdict.state == "drifted"


def test_a_trace_of_other_versions_alone_has_no_baseline() -> None:
    assert held([one | {"version": 2} for one in builders.trace()]).verdict.state == "no_baseline"


def test_inputs_in_a_circle_end() -> None:
    circle = [builders.stage("a", inputs=["b"]), builders.stage("b", inputs=["a"])]
    head = [one | {"sha256": builders.sha(one["name"])} for one in circle]
    found = compare(fingerprint([*builders.trace(), *circle]), fingerprint([*builders.trace(), *head]))
    assert found.verdict.state == "drifted"


def test_metrics_of_another_version_have_no_baseline() -> None:
    metrics = [builders.metric(numbers=[0.951, 0.944, 0.957, 0.949, 0.953])]
    stages = changed("metrics.digits.losses", version=2, sha256=builders.sha("new"))
    assert held(stages, metrics=metrics).verdict.state == "no_baseline"
    assert held(metrics=metrics).verdict.state == "drifted"


def test_without_any_metric_nothing_says_that_the_conclusion_holds() -> None:
    base = fingerprint(metrics=[])
    assert compare(base, base).verdict.level == "bit"
    for metrics in ([], [builders.metric()]):
        found = compare(base, fingerprint(moved("kernel.gemm.fp32", 1e-7), metrics=metrics), "conclusion")
        assert levels(found) == [False, False, False]
        assert "there is no metric: nothing says that the conclusion holds" in reasons(found, 2)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (None, "has no bound in the head"),
        ({"ratio": 1.5, "holds": True}, "breaks its bound: its error is 1.5 times"),
        ({"ratio": 0.5, "holds": False}, "breaks its bound"),
        ({"ratio": "float:nan", "holds": True}, "breaks its bound: its error is NaN times"),
    ],
)
def test_a_bound_cannot_vanish_or_lie(bound: dict[str, Any] | None, words: str) -> None:
    base = fingerprint(changed("kernel.gemm.fp32", bound={"ratio": 1.0, "holds": True}))
    assert compare(base, base).verdict.state == "holds"
    found = compare(base, fingerprint(changed("kernel.gemm.fp32", bound=bound)), "conclusion")
    assert found.verdict.level == "none"
    assert words in reasons(found, 2)


def test_a_nan_is_new_where_the_base_has_no_sketch() -> None:
    base = fingerprint(changed("kernel.gemm.fp32", sketch=None))
    head = fingerprint(changed("kernel.gemm.fp32", content=[math.nan, *numbers_of("kernel.gemm.fp32")[1:]]))
    found = compare(base, head, "conclusion")
    assert levels(found) == [False, False, False]
    assert "has 1 NaN and 0 infinite elements, the base 0 and 0" in reasons(found, 2)


def test_normal_random_numbers_are_held_to_their_tolerance_in_words() -> None:
    stages = [*builders.trace(), builders.stage("rng.torch_normal", "rng")]
    far = jittered(numbers_of("rng.torch_normal"), 1e-3)
    head = [*builders.trace(), builders.stage("rng.torch_normal", "rng", far)]
    found = compare(fingerprint(stages), fingerprint(head), "process")
    assert reasons(found, 1).startswith("rng.torch_normal is off by 0.001")
    assert "relative, 2e-06 was allowed" in reasons(found, 1)


def test_codes_that_cannot_be_compared_are_not_within_any_share() -> None:
    found = held(changed("layer0.mlp_in.codes.fp8", content=[1.0] * 100), "process")
    error = row(found, "layer0.mlp_in.codes.fp8").error
    assert error is not None
    assert (error.share, error.within) == ("float:inf", False)
    assert "layer0.mlp_in.codes.fp8 is infinitely far off" in reasons(found, 1)


def test_swapped_order_of_stages_is_no_difference() -> None:
    assert held(builders.trace()[::-1]).verdict.state == "holds"


def test_a_blind_stage_counts_for_no_level_and_is_shown() -> None:
    head = changed("kernel.gemm.fp32", state="blind", content=jittered(numbers_of("kernel.gemm.fp32"), 0.1))
    found = compare(fingerprint(changed("kernel.gemm.fp32", state="blind")), fingerprint(head))
    assert found.verdict.state == "holds"
    assert row(found, "kernel.gemm.fp32").state == "blind"
    assert row(found, "kernel.gemm.fp32").difference == "blind"
    assert found.warnings == ["only blind stages differ: kernel.gemm.fp32"]


def test_a_stage_that_lost_its_control_is_warned_of_and_no_excuse_for_a_difference() -> None:
    equal = held(changed("kernel.gemm.fp32", state="blind"))
    assert equal.verdict.state == "holds"
    assert equal.warnings == ["1 stage counted in the base and is blind in the head: kernel.gemm.fp32"]
    other = jittered(numbers_of("kernel.gemm.fp32"), 0.1)
    found = held(changed("kernel.gemm.fp32", state="blind", content=other))
    assert found.verdict.state == "drifted"
    assert row(found, "kernel.gemm.fp32").difference == "drifted"
    control = {"change": "another order", "moved": True, "flipped": None}
    base = fingerprint(changed("kernel.gemm.fp32", control=control))
    lost = compare(base, fingerprint(), "conclusion")
    assert levels(lost) == [False, False, False]
    assert "kernel.gemm.fp32 has no control in the head" in reasons(lost, 2)
    assert compare(base, base).verdict.state == "holds"


def test_nothing_that_counts_is_no_pass() -> None:
    stages = [one | {"state": "blind"} for one in builders.trace()]
    found = compare(fingerprint(stages), fingerprint(stages))
    assert found.verdict.state == "drifted"
    assert "nothing was compared" in reasons(found, 0)


def test_blind_logits_that_are_far_off_hold_at_no_level() -> None:
    assert levels(held(changed("logits", state="blind", content=[0.0] * builders.COUNT))) == [
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("side", ["base", "head"])
def test_an_unstable_stage_is_named_first_and_breaks_bit(side: str) -> None:
    stages = changed("kernel.scatter_add.fp32", state="unstable", reason="2 different results in 4 runs")
    pair = {"base": fingerprint(), "head": fingerprint()} | {side: fingerprint(stages)}
    found = compare(pair["base"], pair["head"])
    assert found.diagnosis.first_stage == "kernel.scatter_add.fp32"
    assert levels(found) == [False, False, True]
    assert "unstable" in found.levels[0].reasons[0]


@pytest.mark.parametrize("equal_to_base", [True, False])
def test_a_missed_known_answer_holds_at_no_level(equal_to_base: bool) -> None:
    wrong = changed("invariant.gemm", expected=builders.sha("right"))
    base = fingerprint(wrong) if equal_to_base else fingerprint()
    found = compare(base, fingerprint(wrong), "conclusion")
    assert found.verdict.state == "drifted"
    assert found.diagnosis.first_stage == "invariant.gemm"


def test_answer_and_result_that_change_together_are_caught() -> None:
    other = builders.sha("other")
    found = held(changed("invariant.gemm", sha256=other, expected=other), "conclusion")
    assert found.verdict.state == "drifted"


def test_a_head_cannot_redefine_a_stage() -> None:
    other = builders.sha("other")
    found = held(changed("invariant.gemm", sha256=other, expected=None, kind="sensitive"), "conclusion")
    assert found.verdict.state == "drifted"


def test_a_broken_bound_holds_at_no_level_even_when_equal() -> None:
    broken = changed("kernel.gemm.fp32", bound={"ratio": 3.5, "holds": False})
    found = compare(fingerprint(broken), fingerprint(broken), "conclusion")
    assert found.verdict.state == "drifted"
    assert "3.5" in reasons(found, 2)


def test_logits_off_hold_at_no_level_and_within_tolerance_at_process() -> None:
    assert levels(held(moved("logits", 0.1))) == [False, False, False]
    assert levels(held(moved("logits", 1e-3))) == [False, True, True]


def test_random_streams_must_be_equal_at_process() -> None:
    found = held(moved("rng.torch", 1e-9), "process")
    assert levels(found) == [False, False, True]
    assert "must be equal" in reasons(found, 1)


def test_flipped_codes_are_counted_and_the_values_behind_them_held() -> None:
    codes = [float(i % 7) for i in range(builders.COUNT)]
    few = [code + (i in (5, 100)) for i, code in enumerate(codes)]
    name = "layer0.mlp_in.codes.fp8"
    found = held(changed(name, content=few), "process")
    assert found.verdict.holds
    error = row(found, name).error
    assert error is not None
    assert error.flipped == 2


def test_a_stage_follows_what_it_consumes() -> None:
    found = held(
        changed_all(
            {
                name: {"content": jittered(numbers_of(name), 1e-7)}
                for name in ("layer0.qkv.fp32", "layer0.attention.fp32", "logits")
            }
        )
    )
    assert [row(found, name).follows for name in ("layer0.qkv.fp32", "layer0.attention.fp32", "logits")] == [
        False,
        True,
        True,
    ]
    assert found.diagnosis.first_stage == "layer0.qkv.fp32"
    assert found.diagnosis.operators == ["gemm"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("probe__name", "mine"),
        ("probe__profile", "quick"),
        ("probe__device", "cuda"),
        ("probe__mode", "strict"),
    ],
)
def test_another_probe_is_invalid(path: str, value: str) -> None:
    found = held(**{path: value})
    assert found.verdict.state == "invalid"
    assert EXIT_CODES[found.verdict.state] == 2
    assert levels(found) == [False, False, False]
    assert value in found.diagnosis.reason


def test_another_version_of_the_probe_alone_is_fine_and_said() -> None:
    found = held(probe__version=2)
    assert found.verdict.state == "holds"
    assert found.warnings == ["the probe is of another version: 1 and 2"]


def test_another_seed_keeps_the_conclusion_alone() -> None:
    stages = changed_all(
        {name: {"content": builders.values(77)} for name in ("rng.torch", "metrics.digits.losses")}
    )
    metrics = [builders.metric(numbers=[0.951, 0.944, 0.957, 0.949, 0.953])]
    found = held(stages, "conclusion", metrics=metrics, seeds={"base": 7, "metrics": [7, 8, 9, 10, 11]})
    assert levels(found) == [False, False, True]
    assert found.verdict.state == "holds"
    assert found.diagnosis.class_ == "statistical"
    assert found.environment[0].field == "seeds.base"
    assert found.environment[0].relevance == "likely"


def test_another_seed_with_another_kernel_is_the_environment() -> None:
    stages = changed_all(
        {name: {"content": builders.values(77)} for name in ("rng.torch", "kernel.softmax.fp32")}
    )
    found = held(stages, seeds__base=7, variables__ATEN_CPU_CAPABILITY="avx2")
    assert found.diagnosis.class_ == "environment"
    assert found.diagnosis.first_stage == "kernel.softmax.fp32"


def test_a_metric_beyond_its_band_breaks_every_level() -> None:
    found = held(metrics=[builders.metric(numbers=[0.9, 0.91, 0.89, 0.905, 0.895])], level="conclusion")
    assert levels(found) == [False, False, False]
    assert found.metrics[0].state == "fails"


def test_a_missing_metric_holds_at_no_level() -> None:
    assert levels(held(metrics=[])) == [False, False, False]


def test_sketches_that_overflow_are_written_as_tags() -> None:
    found = held(changed("kernel.gemm.fp32", content=builders.values(3, 20)))
    error = row(found, "kernel.gemm.fp32").error
    assert error is not None
    assert error.relative == "float:inf"
    assert not error.within


def test_traces_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two stages are called logits"):
        held([*builders.trace(), builders.stage("logits")])
    with pytest.raises(InvalidInput, match="head: /metrics/1/name: two metrics"):
        held(metrics=[builders.metric(), builders.metric()])
    with pytest.raises(InvalidInput, match="logit_hash"):
        held(logit_hash=builders.sha("another"))
    with pytest.raises(InvalidInput, match="head: /metrics/0/values: expected one for each of 5 seeds"):
        held(metrics=[builders.metric(numbers=[0.9])])
