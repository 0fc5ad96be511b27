"""`quantize.*`: full mantissas through the quantiser, calibration, integer formats, codebooks, planted ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from reprokit.probe import exact
from reprokit.probe.lfq import bounds, calibration, codebook, groups, precision, quantiser
from reprokit.probe.lfq.formats import E2M1, E4M3, FORMATS, Format
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Control, Stage

ROWS, K, COLUMNS = 64, 256, 64  # of the product with planted ties


def quantize_stages(device: torch.device, full: bool) -> Iterator[Stage]:
    """Known answers but for what a float32 sum decides: errors of a calibration, distances, codes at a tie."""
    x = exact.bell((64, 256), "quantize.input").to(device)
    for form in FORMATS:
        for rule in ("floor", "rceil"):
            low_bit = quantiser.quantise(x, form, rule)
            name = f"quantize.{form.name}.{rule}"
            yield known(f"{name}.scales", "quantize", lambda low_bit=low_bit: low_bit.scales)
            yield known(
                f"{name}.codes", "quantize", lambda low_bit=low_bit: low_bit.codes, (f"{name}.scales",)
            )
            yield known(
                f"{name}.values", "quantize", lambda low_bit=low_bit: low_bit.dequantise(), (f"{name}.codes",)
            )
    yield from _group_stages(x, (32, 128) if full else (32,))
    yield from _calibration_stages(device)
    yield from _codebook_stages(device)
    for form in (E4M3, E2M1):
        yield _tie_stage(form, device)


def _group_stages(x: torch.Tensor, sizes: tuple[int, ...]) -> Iterator[Stage]:
    """Bell-shaped blocks through INT8 and INT4: scales, zero points, codes and values."""
    rules: dict[str, Callable[[torch.Tensor, int, int], groups.Grouped]] = {
        "symmetric": groups.symmetric,
        "asymmetric": groups.asymmetric,
    }
    for bits in (8, 4):
        for size in sizes:
            for rule, quantise in rules.items():
                grouped = quantise(x, bits, size)
                name = f"quantize.int{bits}.g{size}.{rule}"
                sources = [f"{name}.scales"]
                yield known(sources[0], "quantize", lambda grouped=grouped: grouped.scales)
                if grouped.zeros is not None:
                    sources.append(f"{name}.zeros")
                    yield known(
                        sources[1], "quantize", lambda grouped=grouped: grouped.zeros, (f"{name}.scales",)
                    )
                yield known(
                    f"{name}.codes", "quantize", lambda grouped=grouped: grouped.codes, tuple(sources)
                )
                yield known(
                    f"{name}.values",
                    "quantize",
                    lambda grouped=grouped: grouped.dequantise(),
                    (f"{name}.codes",),
                )


def _calibration_stages(device: torch.device) -> Iterator[Stage]:
    """Scale and offset of one set in two orders of its batches, (2, …) each."""
    given = calibration.batches(device)
    for rule in (calibration.absmax, calibration.percentile):
        yield known(
            f"quantize.calibration.{rule.__name__}",
            "quantize",
            lambda rule=rule: calibration.twice(rule, given),
        )
    errors = "quantize.calibration.mse.errors"
    yield Stage(
        errors,
        "reduction",
        lambda: calibration.twice(calibration.squared_errors, given),
        control=Control(
            "the reduction in reversed order",
            lambda: calibration.twice(lambda order: calibration.squared_errors(order, True), given),
        ),
    )
    yield Stage(
        "quantize.calibration.mse.scale",
        "quantize",
        lambda: calibration.twice(calibration.least_squares, given),
        inputs=(errors,),
        bound=calibration.disagreement,
        control=Control(
            "without the last batch", lambda: calibration.twice(calibration.least_squares, given[:-1])
        ),
    )


def _codebook_stages(device: torch.device) -> Iterator[Stage]:
    """The nearest entry among integers, where every tie is exact, and distances of full mantissas."""
    yield known("quantize.codebook.codes", "quantize", lambda: codebook.nearest(*codebook.planted(device)))
    vectors, entries = codebook.full_mantissas(device)
    a, b = codebook.factors(vectors, entries)
    reversed_a, reversed_b = codebook.factors(vectors, entries, reverse=True)
    yield Stage(
        "quantize.codebook.distances",
        "gemm",
        lambda: _product(a, b),
        bound=lambda y: bounds.product(y, a, b, on=device),
        control=Control("the reduction in reversed order", lambda: _product(reversed_a, reversed_b)),
    )


def _tie_stage(form: Format, device: torch.device) -> Stage:
    """Codes uint8 (64, 64) of a product whose exact value is a midpoint between two codes, in every element.

    [X, −X, m] [Y; Y; 1] is m: what is left of X Y − X Y is the noise of the summation alone, and it decides on which
    side of the midpoint m an element falls. So another order flips about half of the codes.
    """
    x = exact.bell((ROWS, K), "quantize.ties.x")
    y = exact.bell((K, COLUMNS), "quantize.ties.y")
    m = _midpoints(form)[torch.arange(ROWS) % len(_midpoints(form))].unsqueeze(-1)
    a = torch.cat((x, -x, m), dim=1).to(device)
    b = torch.cat((y, y, torch.ones(1, COLUMNS))).to(device)
    order = exact.permutation(2 * K + 1, "quantize.ties.order").to(device)
    permuted_a, permuted_b = a[:, order].contiguous(), b[order].contiguous()
    return Stage(
        f"quantize.ties.{form.name}.codes",
        "quantize",
        lambda: quantiser.quantise(_product(a, b), form).codes,
        control=Control(
            "a permuted order of K", lambda: quantiser.quantise(_product(permuted_a, permuted_b), form).codes
        ),
    )


def _midpoints(form: Format) -> torch.Tensor:
    """float32: the midpoints between the numbers of the greatest binade, brought into [1, 2)."""
    lowest = 2.0**form.greatest_exponent
    binade = sorted(value for value in form.values if lowest <= value <= form.largest)
    values = torch.tensor(binade) / lowest
    return (values[1:] + values[:-1]) / 2


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b with all bits of float32, whatever the process has chosen for its products."""
    with precision.tf32(False):
        return a @ b
