"""`invariant.*`: known answers, the same bytes on every correct machine.

Integer-valued matrix products are exact in any order: the sum of the absolute values of their terms fits what the
accumulator holds (2^24 in float32, less in FP8 units) and the type of the result, into which libraries may store
partial sums. Integer reductions, gathers, sorts without ties and the quantiser are exact arithmetic. A miss is a
broken kernel, formula or machine, whatever the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from reprokit.probe import exact
from reprokit.probe.hashing import Array
from reprokit.probe.lfq import quantiser
from reprokit.probe.lfq.answers import ANSWERS
from reprokit.probe.lfq.formats import E2M1, FORMATS, Format
from reprokit.probe.lfq.gpu_kernels import scaled
from reprokit.probe.lfq.sensitive import where_supported
from reprokit.probe.recorder import Stage, Unavailable

GEMM_SHAPES = ((1, 1000, 64), (33, 257, 65), (256, 1024, 128))
BORDER_SHAPES = ((127, 129, 128), (257, 511, 130))  # on both sides of a tile
SPLIT_SHAPE = (64, 8192, 16)  # so long a K that libraries split it
# Matrices hold integers of magnitude below `limit`, and 31 rows of the second are not zero where `sparse`: 31 · 2²
# stays below the 2^8 to which bfloat16 counts, 31 · 8² below the 2^11 of float16, 31 · 32² below 2^15.
SMALL = {torch.bfloat16: 3, torch.float16: 9}
INTEGERS = {torch.int8: 3, torch.uint8: 3, torch.int16: 33, torch.int32: 2048, torch.int64: 1 << 20}
SPARSE = (torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16)


def known(name: str, operator: str, compute: Callable[[], Array], inputs: tuple[str, ...] = ()) -> Stage:
    """An invariant stage, whose answer stands in `answers.py`."""
    return Stage(name, operator, compute, inputs=inputs, invariant=True, answer=ANSWERS.get(name))


def invariant_stages(device: torch.device, full: bool = True) -> Iterator[Stage]:
    """Products, reductions, gathers and sorts of integers; the quantiser on every code and on hard cases."""
    for shape in GEMM_SHAPES:
        for dtype, limit in ((torch.float32, 100), (torch.float64, 100), (torch.bfloat16, 3)):
            yield _gemm(shape, dtype, limit, device)
    yield known("invariant.sum", "reduction", lambda: _integer_sums(device))
    yield known(
        "invariant.sort", "sort", lambda: torch.sort(exact.permutation(4099, "invariant.sort").to(device))[1]
    )
    yield known("invariant.gather", "gather", lambda: _gather(device))
    yield from _integer_products(device, full)
    yield from _integer_reductions(device)
    yield from _moved(device)
    for form in FORMATS:
        yield known(f"invariant.decode.{form.name}", "quantize", lambda form=form: _decode_all(form, device))
        yield known(f"invariant.encode.{form.name}", "quantize", lambda form=form: _encode_all(form, device))
        yield known(f"invariant.specials.{form.name}", "quantize", lambda form=form: _specials(form, device))
    yield known("invariant.nibbles", "quantize", lambda: _nibbles(device))


def _gemm(shape: tuple[int, int, int], dtype: torch.dtype, limit: int, device: torch.device) -> Stage:
    m, k, n = shape
    return known(
        f"invariant.gemm.{_named(dtype)}.{m}x{k}x{n}",
        "gemm",
        lambda: _integer_product(m, k, n, dtype, limit, device),
    )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _integer_product(
    m: int, k: int, n: int, dtype: torch.dtype, limit: int, device: torch.device
) -> torch.Tensor:
    """(m, n) of `dtype`, from integers of magnitude below `limit`; uint8 takes them from 0 on."""
    least = 0 if dtype == torch.uint8 else 1 - limit
    a = exact.below(limit - least, (m, k), f"invariant.gemm.a.{limit}") + least
    b = exact.below(limit - least, (k, n), f"invariant.gemm.b.{limit}") + least
    if dtype in SPARSE:
        b = b * (torch.arange(k) % (k // 31 + 1) == 0).long().unsqueeze(-1)
    with where_supported(f"matrix product of {_named(dtype)}", device):
        return a.to(device, dtype) @ b.to(device, dtype)


def _integer_products(device: torch.device, full: bool) -> Iterator[Stage]:
    """In float16, in every integer type, in complex numbers, by int8 and FP8 units, and across tiles."""
    for shape in GEMM_SHAPES:
        yield _gemm(shape, torch.float16, SMALL[torch.float16], device)
    for dtype, limit in INTEGERS.items():
        yield _gemm((33, 257, 65), dtype, limit, device)
    yield known("invariant.gemm.complex64.33x257x65", "gemm", lambda: _complex_product(33, 257, 65, device))
    yield known("invariant.int_mm.33x264x72", "gemm", lambda: _int8_product(33, 264, 72, device))
    yield known("invariant.gemm.fp8.127x128x128", "gemm", lambda: _fp8_product(127, 128, 128, device))
    if full:
        for shape in BORDER_SHAPES:
            yield _gemm(shape, torch.float32, 100, device)
        yield _gemm(BORDER_SHAPES[0], torch.int32, INTEGERS[torch.int32], device)
        yield _gemm(SPLIT_SHAPE, torch.float32, 45, device)  # 8,192 · 44² < 2^24
        for dtype, limit in SMALL.items():
            yield _gemm(BORDER_SHAPES[0], dtype, limit, device)
            yield _gemm(SPLIT_SHAPE, dtype, 3, device)


def _complex_product(m: int, k: int, n: int, device: torch.device) -> torch.Tensor:
    """(m, n, 2) float32: k · (2 · 99)² < 2^24 also where three real products stand for four."""
    a, b = (
        torch.complex(
            *(
                (exact.below(199, shape, f"invariant.gemm.{name}.{part}") - 99).float()
                for part in ("real", "imaginary")
            )
        ).to(device)
        for shape, name in (((m, k), "a"), ((k, n), "b"))
    )
    with where_supported("matrix product of complex64", device):
        return torch.view_as_real(a @ b)


def _int8_product(m: int, k: int, n: int, device: torch.device) -> torch.Tensor:
    """(m, n) int32 of int8 operands; CUDA wants more than 16 rows, and k and n in eights.

    One operand has its whole range, the other lies in [-64, 64): a CPU without VNNI adds pairs of products in 16
    bits, the one operand shifted to [0, 256), and saturates beyond.
    """
    a = (exact.below(256, (m, k), "invariant.int_mm.a") - 128).to(device, torch.int8)
    b = (exact.below(128, (k, n), "invariant.int_mm.b") - 64).to(device, torch.int8)
    if not hasattr(torch, "_int_mm"):
        raise Unavailable("this torch has no product of int8 into int32")
    with where_supported("product of int8 into int32", device):
        return torch._int_mm(a, b)


def _fp8_product(m: int, k: int, n: int, device: torch.device) -> torch.Tensor:
    """(m, n) float32 of E4M3 operands: k · 3² < 2^11, well within the 14 bits of a sum that Hopper keeps.

    A CPU multiplies them as float32, since most have no FP8 units.
    """
    a, b = (
        (exact.below(7, shape, f"invariant.gemm.fp8.{name}") - 3).float().to(device).to(torch.float8_e4m3fn)
        for shape, name in (((m, k), "a"), ((n, k), "b"))
    )
    if device.type == "cpu":
        return a.float() @ b.float().T
    return scaled(a, b.T, torch.float32)


def _integer_reductions(device: torch.device) -> Iterator[Stage]:
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.bool):
        yield known(
            f"invariant.reduce.{_named(dtype)}", "reduction", lambda dtype=dtype: _reduced(dtype, device)
        )
    for dtype in (torch.int32, torch.int64):
        yield known(
            f"invariant.cumsum.{_named(dtype)}",
            "reduction",
            lambda dtype=dtype: _integers(dtype, (65537,), device).cumsum(0, dtype=dtype),
        )


def _integers(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Integers of `shape`, in int32 so small that 2^16 of them fit their sum."""
    limit = {torch.int32: 1 << 15, torch.int64: 1 << 40, torch.uint8: 256, torch.bool: 2}[dtype]
    least = -limit // 2 if dtype.is_signed else 0
    return (exact.below(limit, shape, f"invariant.integers.{_named(dtype)}") + least).to(device, dtype)


def _reduced(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """int64: sums, least and largest numbers of rows and columns, and of all; of truth values how many are true."""
    x = _integers(dtype, (255, 257), device)
    if dtype == torch.bool:
        parts = [x.sum(0), x.sum(1), x.any(0), x.all(1), x.sum(), x.count_nonzero()]
    else:
        parts = [x.sum(0), x.sum(1), x.sum(), x.amin(0), x.amin(1), x.min(), x.amax(0), x.amax(1), x.max()]
    return torch.cat([part.long().reshape(-1) for part in parts])


def _moved(device: torch.device) -> Iterator[Stage]:
    """Rows and elements chosen by index, and sorts of values without ties: 2,048 integers are exact in float16."""
    for dtype in (torch.int64, torch.bfloat16):
        yield known(
            f"invariant.gather.{_named(dtype)}",
            "gather",
            lambda dtype=dtype: _table(dtype, device)[
                exact.below(1000, (257,), "invariant.gather.index").to(device)
            ],
        )
    yield known(
        "invariant.index_select",
        "gather",
        lambda: _table(torch.float32, device).index_select(
            1, exact.below(16, (33,), "invariant.index_select").to(device)
        ),
    )
    yield known(
        "invariant.take_along_dim",
        "gather",
        lambda: torch.take_along_dim(
            _table(torch.float32, device),
            exact.below(1000, (257, 16), "invariant.take_along_dim").to(device),
            0,
        ),
    )
    for dtype, count in ((torch.float32, 4099), (torch.int64, 4099), (torch.float16, 2048)):
        for name, place in (("sort", 0), ("argsort", 1)):
            yield known(
                f"invariant.{name}.{_named(dtype)}",
                "sort",
                lambda dtype=dtype, count=count, place=place: torch.sort(
                    exact.permutation(count, "invariant.sort").to(device, dtype)
                )[place],
            )


def _table(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(1000, 16) integers of eight bits, exact in bfloat16."""
    return (exact.below(257, (1000, 16), "invariant.table") - 128).to(device, dtype)


def _integer_sums(device: torch.device) -> torch.Tensor:
    x = exact.below(16, (1 << 20,), "invariant.sum").to(device)
    return torch.stack(
        (
            x.float().sum().long(),
            x.double().sum().long(),
            x.sum(),
            x.reshape(1024, -1).float().sum(0).sum().long(),
        )
    )


def _gather(device: torch.device) -> torch.Tensor:
    table = exact.uniform((1000, 16), "invariant.gather.table").to(device)
    return table[exact.below(1000, (257,), "invariant.gather.index").to(device)]


def _decode_all(form: Format, device: torch.device) -> torch.Tensor:
    """float32 of every code; NaN codes are all written as one NaN, since their payload is nobody's promise."""
    codes = torch.arange(1 << form.bits, dtype=torch.uint8, device=device)
    values = quantiser.decode(codes, form)
    return torch.where(values.isnan(), torch.nan, values)


def _encode_all(form: Format, device: torch.device) -> torch.Tensor:
    """Codes of every finite value, of every midpoint between neighbours (ties) and of its two float32 neighbours."""
    finite = sorted({value for value in form.values if abs(value) <= form.largest})
    values = torch.tensor(finite, dtype=torch.float32, device=device)
    middles = (values[1:] + values[:-1]) / 2
    above = torch.nextafter(middles, torch.full_like(middles, torch.inf))
    under = torch.nextafter(middles, torch.full_like(middles, -torch.inf))
    return quantiser.encode(torch.cat((values, middles, above, under)).double(), form)


def _specials(form: Format, device: torch.device) -> torch.Tensor:
    """Scales, codes and values of hard blocks: zeros, −0, NaN, infinity, subnormals, just below a power of two."""
    blocks = exact.bell((10, quantiser.BLOCK), "invariant.specials").clone()
    blocks[0] = 0.0
    blocks[1] = -0.0
    blocks[2, 5] = torch.nan
    blocks[3, 7] = -torch.inf
    blocks[4] *= 2.0**-126  # scales at and below the end of E8M0
    blocks[5] *= 2.0**-140
    blocks[6] *= 2.0**120
    blocks[7, 0] = torch.nextafter(
        torch.tensor(8.0), torch.tensor(0.0)
    )  # a floating-point log2 rounds up to 3
    blocks[8, 0] = form.largest * 1.5  # saturates under `floor`, not under `rceil`
    blocks[9, 1:] = 0.0
    results = []
    for rule in ("floor", "rceil"):
        low_bit = quantiser.quantise(blocks.to(device), form, rule)
        values = low_bit.dequantise()
        bits = torch.where(values.isnan(), torch.nan, values).view(torch.int32).long()
        results += [low_bit.scales.long().flatten(), low_bit.codes.long().flatten(), bits.flatten()]
    return torch.cat(results)


def _nibbles(device: torch.device) -> torch.Tensor:
    codes = exact.below(16, (64, 64), "invariant.nibbles").to(device, torch.uint8)
    packed = quantiser.pack_nibbles(codes)
    values = quantiser.decode(quantiser.unpack_nibbles(packed), E2M1)
    return torch.cat((packed.float(), values), dim=-1)
