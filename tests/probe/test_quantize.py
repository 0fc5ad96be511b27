"""Calibration, integer groups, codebooks and planted ties against exact arithmetic, and the faults they show."""

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe import exact  # noqa: E402
from reprokit.probe.lfq import calibration, codebook, groups, quantiser, quantize  # noqa: E402
from reprokit.probe.lfq.formats import E2M1, E4M3, FORMATS  # noqa: E402
from reprokit.probe.recorder import Recorder  # noqa: E402
from tests.probe.planting import honest, moved  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unspoilt():
    """The honest runs, before a test plants anything."""
    honest("quantize")
    honest("invariant")


def nearest(x: Fraction) -> int:
    return round(x)  # of a fraction: half to even


def stored(x: Fraction) -> Fraction:
    return Fraction(torch.tensor(float(x), dtype=torch.float64).float().item())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [32, 128])
def test_symmetric_groups_by_exact_fractions(bits, size):
    x = exact.bell((4, 256), "quantize.input")
    found = groups.symmetric(x, bits, size)
    top = (1 << (bits - 1)) - 1
    codes = found.codes if bits == 8 else quantiser.unpack_nibbles(found.codes)
    values = found.dequantise()
    for row in range(4):
        for start in range(0, 256, size):
            group = [Fraction(value) for value in x[row, start : start + size].tolist()]
            scale = stored(max(map(abs, group)) / top)
            assert Fraction(found.scales[row, start // size].item()) == scale
            expected = [min(max(nearest(value / scale), -top - 1), top) for value in group]
            assert codes[row, start : start + size].tolist() == [code % (1 << bits) for code in expected]
            assert [Fraction(value) for value in values[row, start : start + size].tolist()] == [
                stored(code * scale) for code in expected
            ]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [32, 128])
def test_asymmetric_groups_by_exact_fractions(bits, size):
    x = exact.bell((4, 256), "quantize.input") + 1.0
    found = groups.asymmetric(x, bits, size)
    top = (1 << bits) - 1
    codes = found.codes if bits == 8 else quantiser.unpack_nibbles(found.codes)
    values = found.dequantise()
    for row in range(4):
        for start in range(0, 256, size):
            group = [Fraction(value) for value in x[row, start : start + size].tolist()]
            low, high = min(*group, Fraction(0)), max(*group, Fraction(0))
            scale = stored((high - low) / top)
            zero = min(max(nearest(-low / scale), 0), top)
            assert Fraction(found.scales[row, start // size].item()) == scale
            assert found.zeros[row, start // size].item() == zero
            expected = [min(max(nearest(value / scale) + zero, 0), top) for value in group]
            assert codes[row, start : start + size].tolist() == expected
            assert [Fraction(value) for value in values[row, start : start + size].tolist()] == [
                stored((code - zero) * scale) for code in expected
            ]


@pytest.mark.parametrize("rule", [groups.symmetric, groups.asymmetric])
def test_a_group_of_zeros_stays_zero(rule):
    found = rule(torch.zeros(1, 32), 4, 32)
    assert found.scales.item() == 1
    assert found.dequantise().count_nonzero() == 0


def test_calibration_by_numbers():
    given = calibration.batches(CPU)
    values = sorted(value for batch in given for value in batch.tolist())
    largest = Fraction(max(map(abs, values)))
    assert calibration.absmax(given).tolist() == [float(2 * largest / 15), -float(largest)]
    low, high = Fraction(values[20]), Fraction(values[-21])  # nearest ranks of 0.5 % and 99.5 % of 4,096
    assert calibration.percentile(given).tolist() == [float((high - low) / 15), float(low)]


def test_the_least_error_is_clear_of_rounding():
    """Its neighbours are worse by more than any order of summation could make up for."""
    given = calibration.batches(CPU)
    errors = calibration.squared_errors([batch.double() for batch in given])
    chosen = int(calibration.least_squares(given)[0])
    assert 0 < chosen < calibration.CANDIDATES - 1, "the search ends inside its grid"
    others = torch.cat((errors[:chosen], errors[chosen + 1 :])).min()
    elements = calibration.BATCHES * calibration.ELEMENTS
    assert (others - errors[chosen]) / errors[chosen] > 4 * elements * 2.0**-24


def test_two_calibrations_that_disagree_break_their_bound():
    assert calibration.disagreement(torch.tensor([[3.0, 0.5], [3.0, 0.5]])) == 0
    assert calibration.disagreement(torch.tensor([[3.0, 0.5], [4.0, 0.5]])) == float("inf")


def test_a_percentile_of_the_first_batches_depends_on_their_order(monkeypatch):
    percentile = calibration.percentile

    def hasty(given):
        return percentile(given[:4])

    hasty.__name__ = "percentile"
    monkeypatch.setattr(calibration, "percentile", hasty)
    assert moved("quantize") == ["quantize.calibration.percentile"]
    first, second = calibration.twice(hasty, calibration.batches(CPU))
    assert (first != second).all()


def test_a_search_that_stops_early_breaks_its_bound(monkeypatch):
    errors = calibration.squared_errors
    monkeypatch.setattr(
        calibration, "squared_errors", lambda given, reverse=False: errors(given[:2], reverse)
    )
    recorder = Recorder()
    recorder.run(quantize.quantize_stages(CPU, full=False))
    assert not recorder.records["quantize.calibration.mse.scale"]["bound"]["holds"]


def test_the_nearest_entry_by_integers_and_the_first_of_equals():
    vectors, entries = (part.long() for part in codebook.planted(CPU))
    distances = (vectors.unsqueeze(1) - entries).square().sum(-1)
    least = distances.min(-1, keepdim=True).values
    assert int(((distances == least).sum(-1) > 1).sum()) >= codebook.VECTORS // 2, "the planted ties"
    expected = [row.index(min(row)) for row in distances.tolist()]
    assert codebook.nearest(*codebook.planted(CPU)).tolist() == expected


def test_the_last_entry_among_equals(monkeypatch):
    argmin = torch.Tensor.argmin
    monkeypatch.setattr(
        torch.Tensor,
        "argmin",
        lambda x, *dim: argmin(x.flip(-1), *dim).neg().add(x.shape[-1] - 1),
    )
    assert moved("quantize") == ["quantize.codebook.codes"]


def test_factors_multiply_to_the_distance():
    vectors, entries = (part.double() for part in codebook.full_mantissas(CPU))
    for reverse in (False, True):
        a, b = codebook.factors(vectors, entries, reverse)
        torch.testing.assert_close((a @ b).sqrt(), torch.cdist(vectors, entries))


@pytest.mark.parametrize("form", [E4M3, E2M1], ids=lambda form: form.name)
def test_at_a_tie_the_order_of_summation_flips_codes(form):
    recorder = Recorder()
    stage = quantize._tie_stage(form, CPU)
    recorder.run([stage])
    control = recorder.records[stage.name]["control"]
    assert control["moved"]
    assert control["flipped"] > 4096 / 8
    codes = stage.compute()
    decoded = quantiser.decode(codes, form) / 2.0**form.greatest_exponent
    m = quantize._midpoints(form)[torch.arange(64) % len(quantize._midpoints(form))].unsqueeze(-1)
    step = 2.0**-form.mantissa_bits
    assert ((decoded - m).abs() == step / 2).all(), "each code is one of the two beside its midpoint"


def test_midpoints_lie_between_neighbouring_codes():
    assert quantize._midpoints(E2M1).tolist() == [1.25]
    assert quantize._midpoints(E4M3).tolist() == [1 + (2 * i + 1) / 16 for i in range(6)]


def test_the_other_scale_rule(monkeypatch):
    exponent = quantiser.scale_exponent
    monkeypatch.setattr(
        quantiser, "scale_exponent", lambda largest, form, rule: exponent(largest, form, "rceil")
    )
    found = moved("quantize")
    ties = {f"quantize.ties.{form.name}.codes" for form in (E4M3, E2M1)}
    floor = {
        f"quantize.{form.name}.floor.{kind}" for form in FORMATS for kind in ("scales", "codes", "values")
    }
    assert set(found) - ties <= floor
    assert {f"quantize.{form.name}.floor.scales" for form in FORMATS} <= set(found)
    assert found[0] == "quantize.e4m3.floor.scales"


def test_a_logarithm_in_floating_point(monkeypatch):
    monkeypatch.setattr(quantiser, "floor_log2", lambda x: x.float().log2().floor().clamp(min=-1000).long())
    assert moved("invariant") == [f"invariant.specials.{form.name}" for form in FORMATS]


def test_a_scale_by_a_reciprocal(monkeypatch):
    """What a GPU makes of a division by a number of the host: two roundings in place of one."""

    def reciprocal(extent, steps):
        scales = (extent.float() * (torch.ones(()) / steps)).float()
        return scales.masked_fill(scales == 0, 1.0)

    monkeypatch.setattr(groups, "_scales", reciprocal)
    found = moved("quantize")
    assert found[0] == "quantize.int8.g32.symmetric.scales"
    assert all(name.startswith(("quantize.int8.", "quantize.int4.")) for name in found)
    assert sum(name.endswith(".scales") for name in found) == 8


def test_nibbles_the_other_way_round(monkeypatch):
    monkeypatch.setattr(quantiser, "pack_nibbles", lambda codes: codes[..., 1::2] | (codes[..., 0::2] << 4))
    rules = ("symmetric", "asymmetric")
    assert moved("quantize") == [
        f"quantize.int4.g{size}.{rule}.{kind}"
        for size in (32, 128)
        for rule in rules
        for kind in ("codes", "values")
    ]
