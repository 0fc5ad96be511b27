"""`invariant.*`: known answers, the same bytes on every correct machine.

Integer-valued matrix products stay below 2^24 in every partial sum, so that float32 holds them exactly in any
order; the quantiser is exact arithmetic. A miss is a broken kernel, formula or machine, whatever the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from reprokit.probe import exact
from reprokit.probe.hashing import Array
from reprokit.probe.lfq import quantiser
from reprokit.probe.lfq.answers import ANSWERS
from reprokit.probe.lfq.formats import E2M1, FORMATS, Format
from reprokit.probe.recorder import Stage

GEMM_SHAPES = ((1, 1000, 64), (33, 257, 65), (256, 1024, 128))


def known(name: str, operator: str, compute: Callable[[], Array], inputs: tuple[str, ...] = ()) -> Stage:
    """An invariant stage, whose answer stands in `answers.py`."""
    return Stage(name, operator, compute, inputs=inputs, invariant=True, answer=ANSWERS.get(name))


def invariant_stages(device: torch.device) -> Iterator[Stage]:
    """Integer products in float32, float64 and bfloat16; the quantiser on every code and on hard cases."""
    for m, k, n in GEMM_SHAPES:
        for dtype, limit in ((torch.float32, 100), (torch.float64, 100), (torch.bfloat16, 3)):
            yield known(
                f"invariant.gemm.{str(dtype).removeprefix('torch.')}.{m}x{k}x{n}",
                "gemm",
                lambda m=m, k=k, n=n, dtype=dtype, limit=limit: _integer_product(
                    m, k, n, dtype, limit, device
                ),
            )
    yield known("invariant.sum", "reduction", lambda: _integer_sums(device))
    yield known(
        "invariant.sort", "sort", lambda: torch.sort(exact.permutation(4099, "invariant.sort").to(device))[1]
    )
    yield known("invariant.gather", "gather", lambda: _gather(device))
    for form in FORMATS:
        yield known(f"invariant.decode.{form.name}", "quantize", lambda form=form: _decode_all(form, device))
        yield known(f"invariant.encode.{form.name}", "quantize", lambda form=form: _encode_all(form, device))
        yield known(f"invariant.specials.{form.name}", "quantize", lambda form=form: _specials(form, device))
    yield known("invariant.nibbles", "quantize", lambda: _nibbles(device))


def _integer_product(
    m: int, k: int, n: int, dtype: torch.dtype, limit: int, device: torch.device
) -> torch.Tensor:
    """(m, n): partial sums stay below 2^24 in float32, and below 2^8 in bfloat16 by sparse columns."""
    a = exact.below(2 * limit - 1, (m, k), f"invariant.gemm.a.{limit}") - (limit - 1)
    b = exact.below(2 * limit - 1, (k, n), f"invariant.gemm.b.{limit}") - (limit - 1)
    if dtype == torch.bfloat16:  # the result itself must fit 8 bits: 31 terms of at most 4 do
        b = b * (torch.arange(k) % (k // 31 + 1) == 0).long().unsqueeze(-1)
    return a.to(device, dtype) @ b.to(device, dtype)


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
