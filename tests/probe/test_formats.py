"""The low-bit formats and the quantiser against exact fractions, ml_dtypes and the figures of the specification."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

from reprokit.probe.lfq import quantiser  # noqa: E402
from reprokit.probe.lfq.formats import E2M1, E2M3, E3M2, E4M3, E5M2, FORMATS  # noqa: E402

pytestmark = pytest.mark.torch
each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
ML_DTYPES = {
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
    E3M2: ml_dtypes.float6_e3m2fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E2M1: ml_dtypes.float4_e2m1fn,
}
finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
blocks = st.lists(finite32, min_size=32, max_size=32)


def nearest(x: float, form) -> int:
    """Code of the nearest number by exact fractions, ties to the even code: the oracle of the encoder."""
    values = [
        (Fraction(value), code)
        for code, value in enumerate(form.values[: 1 << (form.bits - 1)])
        if math.isfinite(value)
    ]
    target = abs(Fraction(x))
    code = min(values, key=lambda item: (abs(item[0] - target), item[1] % 2))[1]
    return code | (math.copysign(1, x) < 0) << (form.bits - 1)


def test_largest_numbers_are_those_of_the_specification():
    assert [form.largest for form in FORMATS] == [448, 57344, 28, 7.5, 6]
    assert [form.greatest_exponent for form in FORMATS] == [8, 15, 4, 2, 2]
    assert [form.bits for form in FORMATS] == [8, 8, 6, 6, 4]


@each_format
def test_all_codes_decode_as_in_ml_dtypes(form):
    codes = np.arange(1 << form.bits, dtype=np.uint8)
    theirs = codes.view(ML_DTYPES[form]).astype(np.float32)
    ours = quantiser.decode(torch.from_numpy(codes), form).numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert np.array_equal(np.signbit(ours), np.signbit(theirs)) or form.special != "none"


@each_format
def test_every_finite_code_survives_a_round_trip(form):
    codes = torch.tensor(
        [c for c, value in enumerate(form.values) if math.isfinite(value)], dtype=torch.uint8
    )
    assert quantiser.encode(quantiser.decode(codes, form).double(), form).tolist() == codes.tolist()


@each_format
@given(x=finite32)
def test_encoding_is_the_nearest_number_ties_to_even(form, x):
    assert quantiser.encode(torch.tensor([x], dtype=torch.float64), form).item() == nearest(x, form)


@each_format
def test_ties_go_to_the_even_code_and_their_neighbours_to_the_nearer_one(form):
    """Every midpoint between two numbers, which random inputs never hit, and the float64 numbers on its two sides."""
    finite = sorted({value for value in form.values if math.isfinite(value)})
    middles = [(low + high) / 2 for low, high in itertools.pairwise(finite)]
    xs = [math.nextafter(x, side) for x in middles for side in (-math.inf, math.inf)] + middles
    codes = quantiser.encode(torch.tensor(xs, dtype=torch.float64), form).tolist()
    assert codes == [nearest(x, form) for x in xs]
    assert not any(code % 2 for code in codes[-len(middles) :]), "a tie went to an odd code"


@each_format
@given(x=finite32)
def test_encoding_agrees_with_ml_dtypes_but_for_its_documented_differences(form, x):
    """ml_dtypes does not saturate: E4M3 gives NaN above 464 and E5M2 infinity from 61,440; FP6 and FP4 do."""
    theirs = np.array([x], np.float32).astype(ML_DTYPES[form])
    ours = quantiser.encode(torch.tensor([x], dtype=torch.float64), form).item()
    if np.isfinite(theirs.astype(np.float32))[0]:
        assert ours == theirs.view(np.uint8)[0] & ((1 << form.bits) - 1)
    else:
        assert form in (E4M3, E5M2)
        assert abs(x) > form.largest
        assert abs(form.values[ours]) == form.largest


def test_ml_dtypes_differs_where_it_is_said_to():
    above = np.array([465.0, np.nan], np.float32)
    assert np.isnan(above.astype(ML_DTYPES[E4M3]).astype(np.float32)).all()
    assert quantiser.encode(torch.tensor([465.0], dtype=torch.float64), E4M3).item() == 0x7E
    assert (
        above[1:].astype(ML_DTYPES[E2M1]).view(np.uint8)[0] & 0xF == 0x8
    )  # −0 for NaN; here the block's scale says NaN


@each_format
@pytest.mark.parametrize("rule", ["floor", "rceil"])
@given(values=blocks)
def test_scales_are_exact_at_every_magnitude(form, rule, values):
    """The exponent by exact fractions, which no floating-point logarithm can get wrong."""
    largest = max(abs(Fraction(v)) for v in values)
    low_bit = quantiser.quantise(torch.tensor(values, dtype=torch.float32), form, rule)
    if largest == 0:
        assert low_bit.scales.item() == 0
        return
    floor = next(e for e in range(130, -160, -1) if Fraction(2) ** e <= largest)
    exponent = floor - form.greatest_exponent
    if rule == "rceil":
        exponent += largest / Fraction(2) ** exponent > Fraction(form.largest)
    exponent = max(exponent, -127)
    assert low_bit.scales.item() == exponent + 127
    scale = Fraction(2) ** exponent
    assert low_bit.codes.tolist() == [
        nearest(float(Fraction(v) / scale), form) | (math.copysign(1, v) < 0) << (form.bits - 1)
        for v in values
    ]


@pytest.mark.parametrize("power", range(-120, 121, 7))
def test_just_below_a_power_of_two_the_scale_is_the_lower_one(power):
    x = torch.zeros(32)
    x[3] = float(np.nextafter(np.float32(2.0**power), np.float32(0)))
    assert quantiser.quantise(x, E2M1).scales.item() == max(power - 1 - 2, -127) + 127


def test_special_blocks():
    x = torch.ones(4, 32)
    x[0, 4], x[1, 4], x[2] = torch.nan, torch.inf, -0.0
    low_bit = quantiser.quantise(x, E4M3)
    assert low_bit.scales.flatten().tolist() == [0xFF, 0xFF, 0, 127 - 8]
    assert low_bit.codes[:2].count_nonzero() == 0
    assert low_bit.codes[2].tolist() == [0x80] * 32
    values = low_bit.dequantise()
    assert values[:2].isnan().all()
    assert values[2].signbit().all()
    assert values[3].tolist() == [1.0] * 32


def test_the_smallest_scale_is_not_flushed_to_zero():
    x = torch.full((32,), 2.0**-128)  # subnormal in float32, and so is its scale 2^-127
    low_bit = quantiser.quantise(x, E2M1)
    assert low_bit.scales.item() == 0
    assert low_bit.dequantise().tolist() == [2.0**-128] * 32


def test_floor_saturates_where_rceil_does_not():
    x = torch.full((32,), 7.9)
    assert quantiser.quantise(x, E2M1, "floor").dequantise()[0] == 6
    assert quantiser.quantise(x, E2M1, "rceil").dequantise()[0] == 8


def test_nibbles_put_the_even_element_low():
    codes = torch.tensor([1, 2, 3, 15], dtype=torch.uint8)
    assert quantiser.pack_nibbles(codes).tolist() == [0x21, 0xF3]
    assert quantiser.unpack_nibbles(quantiser.pack_nibbles(codes)).tolist() == codes.tolist()


def test_a_ragged_block_is_refused():
    with pytest.raises(ValueError, match="33, is no multiple of the block size 32"):
        quantiser.quantise(torch.ones(33), E2M1)
