"""Distances from sketches, held to the true ones."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.compare import compare
from reprokit.compare.sketches import UNCERTAINTY, distance
from reprokit.model.trace import Sketch, Stage
from tests.compare import builders


def made(numbers: list[float], **fields: object) -> Stage:
    return msgspec.convert(builders.stage("kernel.x", content=numbers, **fields), Stage)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(65, 2000),
    exponent=st.integers(-7, 0),
    touched=st.sampled_from(["all", "few"]),
)
def test_estimate_lies_within_six_standard_errors(seed: int, count: int, exponent: int, touched: str) -> None:
    base = builders.values(seed, count)
    head = builders.jittered(base, 10.0**exponent, seed + 1)
    if touched == "few":
        head = [y if position < 3 else x for position, (x, y) in enumerate(zip(base, head, strict=True))]
    true = math.dist(base, head) / math.hypot(*base)
    found = distance(made(base), made(head))
    assert found is not None
    assert found.uncertainty == UNCERTAINTY
    assert abs(found.relative / true - 1) <= 6 * UNCERTAINTY


def test_standard_error_is_the_stated_one() -> None:
    base = builders.values(1, 700)
    ratios = []
    for seed in range(200):
        head = builders.jittered(base, 1e-3, seed + 2)
        found = distance(made(base), made(head))
        assert found is not None
        ratios.append(found.relative / 1e-3)
    mean = sum(ratios) / len(ratios)
    deviation = math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / (len(ratios) - 1))
    assert 0.97 < mean < 1.03
    assert deviation == pytest.approx(UNCERTAINTY, rel=0.25)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=64), st.floats(-1e3, 1e3))
def test_small_tensors_are_exact(base: list[float], shift: float) -> None:
    head = [base[0] + shift, *base[1:]]
    found = distance(made(base), made(head))
    assert found is not None
    assert found.uncertainty == 0
    norm = math.hypot(*base)
    true = math.dist(base, head)
    assert found.relative == pytest.approx(true / norm if norm else (math.inf if true else 0.0))
    assert found.largest == abs(head[0] - base[0])


def test_permuted_elements_are_seen_though_the_norm_is_equal() -> None:
    base = builders.values(3)
    head = [base[1], base[0], *base[2:]]
    found = distance(made(base), made(head))
    assert found is not None
    true = math.dist(base, head) / math.hypot(*base)
    assert found.relative == pytest.approx(true, rel=0.5)


def test_minus_zero_is_no_distance() -> None:
    found = distance(made([0.0, 1.0]), made([-0.0, 1.0]))
    assert found is not None
    assert found.relative == 0


def test_zero_norms() -> None:
    zero, one = made([0.0] * 100), made([1.0] + [0.0] * 99)
    same, far = distance(zero, zero), distance(zero, one)
    assert same is not None
    assert far is not None
    assert (same.relative, far.relative) == (0.0, math.inf)


@pytest.mark.parametrize(
    "head",
    [
        [math.nan, *builders.values(5)[1:]],
        [math.inf, *builders.values(5)[1:]],
        builders.values(5)[:-1],
        builders.values(5, 20),
    ],
    ids=["nan", "inf", "shape", "small"],
)
def test_what_cannot_be_compared_is_infinitely_far(head: list[float]) -> None:
    found = distance(made(builders.values(5)), made(head))
    assert found is not None
    assert found.relative == math.inf


def test_an_infinity_that_changes_its_sign_is_infinitely_far() -> None:
    found = distance(made([math.inf, 1.0]), made([-math.inf, 1.0]))
    assert found is not None
    assert found.relative == math.inf


@pytest.mark.parametrize(
    "forged",
    [{"buckets": [0.0] * 10}, {"norm": "float:inf"}, {"norm": -1.0}, {"samples": []}, {"numel": 3}],
    ids=["buckets", "norm", "negative", "samples", "numel"],
)
def test_forged_sketch_is_infinitely_far(forged: dict[str, object]) -> None:
    numbers = builders.values(5)
    head = made(numbers, sketch=builders.sketch(numbers) | forged)
    found = distance(made(numbers), head)
    assert found is not None
    assert found.relative == math.inf


def test_equal_buckets_cannot_hide_other_norms() -> None:
    numbers = builders.values(5)
    head = made(numbers, sketch=builders.sketch(numbers) | {"norm": 2 * math.hypot(*numbers)})
    found = distance(made(numbers), head)
    assert found is not None
    assert found.relative == pytest.approx(1.0)


def test_flipped_codes_are_counted() -> None:
    base = [float(i % 7) for i in range(512)]
    head = [code + (1 if i in (5, 100, 300) else 0) for i, code in enumerate(base)]
    codes = {"operator": "quantize", "dtype": "uint8"}
    found = distance(made(base, **codes), made(head, **codes))
    assert found is not None
    assert found.flipped == 3
    assert found.share == pytest.approx(3 / 512)


def test_no_sketch_no_distance() -> None:
    assert distance(made([1.0]), made([2.0], sketch=None)) is None


FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e154, 1e155, -1.7e308, 1.7e308, 5e-324]),
)
ANY_NUMBER = st.one_of(FINITE, st.sampled_from(["float:nan", "float:inf", "float:-inf"]))
WHOLE = st.one_of(st.integers(0, 200), st.just(2**53))
SKETCHES = st.fixed_dictionaries(
    {
        "numel": WHOLE,
        "norm": ANY_NUMBER,
        "minimum": st.none(),
        "maximum": st.none(),
        "nan": st.integers(0, 1),
        "infinite": st.integers(0, 1),
        "samples": st.lists(ANY_NUMBER, max_size=3),
        "buckets": st.one_of(st.just([]), st.lists(FINITE, min_size=64, max_size=64)),
    }
)


@given(base=SKETCHES, head=SKETCHES, like=st.booleans(), codes=st.booleans())
def test_no_sketch_raises_and_what_is_not_finite_is_not_within(
    base: dict[str, object], head: dict[str, object], like: bool, codes: bool
) -> None:
    if like:  # else most pairs differ in their counts alone
        head = head | {key: base[key] for key in ("numel", "nan", "infinite")}
    fields = {"operator": "quantize", "dtype": "uint8"} if codes else {}
    sides = [
        builders.fingerprint(
            [builders.stage("kernel.x", sha256=builders.sha(side), **{"sketch": sketch, **fields})]
        )
        for side, sketch in enumerate((base, head))
    ]
    found = distance(sides[0].stages[0], sides[1].stages[0])
    assert found is not None
    (stage,) = compare(*sides).stages
    assert stage.error is not None
    assert found.relative == found.relative
    if not math.isfinite(found.relative if found.share is None else found.share):
        assert not stage.error.within
    assert not (stage.error.within and found.largest == math.inf)


def test_buckets_that_overflow_are_infinitely_far_or_counted() -> None:
    numbers = builders.values(5)
    for largest, relative in ((1e200, False), (1.7e308, True), (math.inf, True), (math.nan, True)):
        head = made(numbers, sketch=builders.sketch(numbers) | {"buckets": [largest] * 64})
        found = distance(made(numbers), head)
        assert found is not None
        assert (found.relative == math.inf) is relative
        codes = {"operator": "quantize", "dtype": "uint8"}
        counted = distance(made(numbers, **codes), msgspec.structs.replace(head, **codes))  # type: ignore[arg-type]
        assert counted is not None
        assert counted.flipped == len(numbers)


@pytest.mark.parametrize("numel", [2**53 + 1, 10**400, -1])
def test_counts_that_no_float_holds_are_refused(numel: int) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(builders.sketch([1.0]) | {"numel": numel}, Sketch)
    with pytest.raises(msgspec.ValidationError):
        made([1.0], shape=[numel])
