"""Tolerances: jitter passes, wrong formulas do not."""

from __future__ import annotations

import msgspec
import pytest

from reprokit.compare import measured
from reprokit.compare.tolerances import ACCUMULATED_CAP, FACTOR, PAIRED, WRONG_FORMULA, rounded_up, tolerance
from reprokit.model.trace import Stage
from tests.compare import builders

JITTER = 1.2e-6  # the most that a variant moved a float32 kernel in trials on other days


def made(name: str, operator: str, **fields: str) -> Stage:
    return msgspec.convert(builders.stage(name, operator, **fields), Stage)


@pytest.mark.parametrize("operator", ["gemm", "conv", "attention", "reduction", "scatter", "collective"])
def test_jitter_of_float32_passes(operator: str) -> None:
    allowed = tolerance(made("kernel.x", operator))
    assert allowed is not None
    assert JITTER < allowed.value < WRONG_FORMULA


def test_tanh_gelu_fails() -> None:
    allowed = tolerance(made("kernel.gelu.fp32", "elementwise"))
    assert allowed is not None
    assert allowed.value < WRONG_FORMULA / 2


def test_every_measured_float32_kernel_is_calm() -> None:
    loud = [
        row
        for row in measured.MEASURED
        if row[1] == "float32"
        and row[2] > JITTER
        and row[3] != "one flipped code"
        # what many steps or float16 lie behind, where rounding adds up
        and not row[0].startswith(("sampling.", "training."))
    ]
    assert loud == []


@pytest.mark.parametrize("operator", ["rng", "data", "gather", "sort"])
def test_what_rounds_nothing_must_be_equal(operator: str) -> None:
    assert tolerance(made("kernel.x", operator)) is None


def test_invariants_and_integers_must_be_equal() -> None:
    assert tolerance(made("invariant.gemm", "gemm", kind="invariant")) is None
    assert tolerance(made("kernel.x", "gemm", dtype="int64")) is None


def test_logits_are_capped_whatever_was_measured() -> None:
    measured_logits = next(row[2] for row in measured.MEASURED if row[0] == "logits")
    assert measured_logits * FACTOR > ACCUMULATED_CAP
    allowed = tolerance(made("logits", "gemm"))
    assert allowed is not None
    assert allowed.value == ACCUMULATED_CAP
    assert "capped at 0.05" in allowed.origin


def test_behind_a_quantiser_one_flipped_code_passes() -> None:
    for name, operator, dtype, value in (
        ("layer0.qkv.codes.fp8", "quantize", "uint8", 1.0),
        ("layer0.qkv.fp8", "gemm", "float32", 0.05),
        ("logits.fp8", "gemm", "float32", 0.05),
    ):
        allowed = tolerance(made(name, operator, dtype=dtype))
        assert allowed is not None
        assert allowed.value == value
        assert "one flipped code" in allowed.origin
    tight = tolerance(made("logits.fp32", "gemm"))
    assert tight is not None
    assert tight.value < WRONG_FORMULA


def test_normal_random_numbers_may_jitter_and_uniform_ones_may_not() -> None:
    allowed = tolerance(made("rng.torch_normal", "rng"))
    assert allowed is not None
    assert JITTER < allowed.value < WRONG_FORMULA
    assert tolerance(made("rng.torch_uniform", "rng")) is None


def test_every_tolerance_tells_its_origin() -> None:
    allowed = tolerance(made("kernel.softmax.fp32", "softmax"))
    assert allowed is not None
    assert f"{FACTOR} ×" in allowed.origin


def test_an_unmeasured_type_is_scaled_by_its_roundoff() -> None:
    half, single = (tolerance(made("kernel.x", "reduction", dtype=dtype)) for dtype in ("float16", "float32"))
    assert half is not None
    assert single is not None
    assert 2**12 < half.value / single.value < 2**14
    assert "float16" in half.origin


@pytest.mark.parametrize(
    ("value", "up"), [(0.0, 0.0), (1e-6, 1e-6), (1.01e-6, 2e-6), (9.1e-6, 1e-5), (5.5e-6, 6e-6), (8.0, 8.0)]
)
def test_rounding_up_to_one_digit(value: float, up: float) -> None:
    assert rounded_up(value) == up


@pytest.mark.parametrize(
    ("name", "operator", "dtype", "largest"),
    [
        ("layer1.mlp_in.bf16", "gemm", "bfloat16", "*.bf16"),
        ("logits.fp16", "gemm", "float16", "*.fp16"),
        ("batch.prefill.split_at_1.fp32", "metric", "float32", "batch.logits.*"),
        ("training.gradients.4x2.head", "metric", "float32", "training.gradients.*"),
        ("collective.gradients.two_ranks", "collective", "float32", "training.gradients.*"),
        ("sampling.top_p.margins", "metric", "float32", "sampling.greedy.margins"),
        ("training.losses", "metric", "float32", "training.losses"),
        ("rng.torch_normal.1048577", "rng", "float32", "rng.*_normal*"),
    ],
)
def test_a_place_has_the_tolerance_that_was_measured_there(name, operator, dtype, largest) -> None:
    found = tolerance(made(name, operator, dtype=dtype))
    expected = {row[:2]: row[2] for row in measured.MEASURED}[largest, dtype]
    assert found is not None
    assert found.value == rounded_up(8 * expected)


@pytest.mark.parametrize("name", ["sampling.greedy.tokens", "training.scaled.scales", "rng.torch_uniform.16"])
def test_what_no_variant_moved_must_be_equal_or_is_counted(name: str) -> None:
    found = tolerance(made(name, "rng", dtype="int64"))
    assert found is None


def test_the_metrics_of_the_task_count_images_whatever_was_measured() -> None:
    found = tolerance(made("metrics.digits.evaluation", "metric", dtype="float64"))
    assert found is not None
    assert found.value == 2 / 360


def test_only_where_a_cap_decides_it_is_named() -> None:
    half = tolerance(made("kernel.x", "gemm", dtype="float16"))
    assert half is not None
    assert "capped" not in half.origin
    codes = tolerance(made("layer0.qkv.codes.fp8", "quantize", dtype="uint8"))
    assert codes is not None
    assert "capped at 1" in codes.origin


def test_one_image_of_the_held_out_ones_passes_and_three_do_not() -> None:
    image = 1 / 360 / 0.9117  # the mean accuracy that the task reaches
    assert image < PAIRED < 3 * image
