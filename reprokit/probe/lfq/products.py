"""`kernel.*`, matrix products and convolutions: one row, a K that no vector width divides, more rows than a tile.

A result of 16 bits hides most reorderings of its sum, so that a stage needs many results to see any: about 4,000 in
float16 and 10,000 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import bounds
from reprokit.probe.lfq.sensitive import (
    REVERSED,
    filled,
    inputs_roundoff,
    partials_roundoff,
    racing,
    sensitive,
    short,
)
from reprokit.probe.recorder import Stage

QUICK_GEMMS = ((1, 1000, 64), (64, 1000, 64), (255, 1001, 128))
FULL_GEMMS = (
    *QUICK_GEMMS,
    (8, 1024, 256),
    (16, 1000, 128),
    (32, 1024, 64),
    (256, 1024, 256),
    (512, 512, 512),
)
# with those above every M of 1, 8, 16, 32, 255, 256 meets every K of 1000, 1001, 1024
BORDERS = {
    torch.float32: (
        *((1, k, 64) for k in (1001, 1024)),
        *((m, k, 64) for m in (8, 32) for k in (1000, 1001)),
        *((16, k, 64) for k in (1001, 1024)),
        *((255, k, 64) for k in (1000, 1024)),
        *((256, k, 64) for k in (1000, 1001)),
    ),
    torch.bfloat16: ((32, 1001, 512), (255, 1024, 64), (256, 1000, 64)),
    torch.float16: ((16, 1000, 256), (32, 1001, 256), (255, 1024, 64)),
}
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def held(a: torch.Tensor, b: torch.Tensor, **allowed: Any) -> Callable[[torch.Tensor], float]:
    """The bound of a product of `a` and `b` as the device under test may compute it."""
    return lambda y: bounds.product(
        y, a, b, inputs_roundoff("matmul", a), partials=partials_roundoff(a), **allowed
    )


def gemms(device: torch.device, dtype: torch.dtype, full: bool) -> Iterator[Stage]:
    """Products (m, k) by (k, n), both stored row by row."""
    for m, k, n in FULL_GEMMS if full else QUICK_GEMMS:
        if dtype == torch.bfloat16 and m * n < 10_000:
            continue
        a = exact.bell((m, k), f"kernel.gemm.a.{m}x{k}").to(device, dtype)
        b = exact.bell((k, n), f"kernel.gemm.b.{k}x{n}").to(device, dtype)
        yield _gemm(f"{m}x{k}x{n}", a, b)


def border_gemms(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """Products on both sides of where libraries choose another kernel."""
    for m, k, n in BORDERS[dtype]:
        a = filled((m, k), "kernel.border.a").to(device, dtype)
        b = filled((k, n), "kernel.border.b", 1 << 19).to(device, dtype)
        yield _gemm(f"{m}x{k}x{n}", a, b)


def _gemm(shape: str, a: torch.Tensor, b: torch.Tensor) -> Stage:
    return sensitive(
        f"kernel.gemm.{shape}.{short(a.dtype)}",
        "gemm",
        lambda: a @ b,
        held(a, b),
        (REVERSED, lambda: a.flip(1) @ b.flip(0)),
    )


def layouts(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """One product in the four layouts, with a bias in its epilogue, and as a batch."""
    m, k, n = 127, 1000, 160
    a = filled((m, k), "kernel.border.a").to(device, dtype)
    b = filled((k, n), "kernel.border.b", 1 << 19).to(device, dtype)
    bias = filled((n,), "kernel.border.bias", 160).to(device, dtype)
    stored: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "n": lambda x: x.contiguous(),
        "t": lambda x: x.T.contiguous().T,  # the same numbers, stored column by column
    }
    for left, right in ("nn", "nt", "tn", "tt"):
        operands = stored[left](a), stored[right](b)
        reverse = stored[left](a.flip(1)), stored[right](b.flip(0))
        yield sensitive(
            f"kernel.gemm_{left}{right}.{m}x{k}x{n}.{short(dtype)}",
            "gemm",
            partial(torch.matmul, *operands),
            held(a, b),
            (REVERSED, partial(torch.matmul, *reverse)),
        )
    epilogues: dict[str, Product] = {
        "addmm": lambda x, y: torch.addmm(bias, x, y),
        "linear": lambda x, y: F.linear(x, y.T.contiguous(), bias),
    }
    for name, function in epilogues.items():
        yield sensitive(
            f"kernel.{name}.{m}x{k}x{n}.{short(dtype)}",
            "gemm",
            partial(function, a, b),
            held(a, b, bias=bias),
            (REVERSED, lambda function=function: function(a.flip(1), b.flip(0))),
        )
    yield from _batched(device, dtype)


def _batched(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    a = filled((6, 40, 1001), "kernel.border.a").to(device, dtype)
    b = filled((6, 1001, 80), "kernel.border.b", 1 << 19).to(device, dtype)
    bias = filled((6, 40, 80), "kernel.batched.bias", 6 * 40 * 80).to(device, dtype)
    batched: dict[str, tuple[Product, torch.Tensor | None]] = {
        "bmm": (torch.bmm, None),
        "baddbmm": (lambda x, y: torch.baddbmm(bias, x, y), bias),
    }
    for name, (function, added) in batched.items():
        yield sensitive(
            f"kernel.{name}.6x40x1001x80.{short(dtype)}",
            "gemm",
            partial(function, a, b),
            held(a, b, bias=added),
            (REVERSED, lambda function=function: function(a.flip(2), b.flip(1))),
        )


def rows(device: torch.device) -> Iterator[Stage]:
    """Row 3 of a product: computed alone, and taken from the product of the whole batch."""
    a = exact.bell((33, 1000), "kernel.rows.a").to(device)
    b = exact.bell((1000, 96), "kernel.rows.b").to(device)
    for name, batch, row in (("row_alone", slice(3, 4), 0), ("row_in_batch", slice(None), 3)):
        yield sensitive(
            f"kernel.{name}.fp32",
            "gemm",
            lambda batch=batch, row=row: (a[batch] @ b)[row],
            held(a[3], b),
            (REVERSED, lambda batch=batch, row=row: (a[batch].flip(1) @ b.flip(0))[row]),
        )


def convolutions(device: torch.device, dtype: torch.dtype, full: bool) -> Iterator[Stage]:
    """Without bias or padding, kernels of one size and another."""
    shapes = {"3x3": ((2, 64, 24, 24), (64, 64, 3, 3))}
    if full:
        shapes["1x1"] = ((2, 64, 20, 20), (48, 64, 1, 1))
    if full and dtype == torch.float32:  # in bfloat16 its few channels leave a reordered sum nothing to show
        shapes["5x5"] = ((2, 9, 31, 31), (17, 9, 5, 5))
    for name, (image, kernel) in shapes.items():
        x = exact.bell(image, f"kernel.conv.x.{name}").to(device, dtype)
        weight = exact.bell(kernel, f"kernel.conv.weight.{name}").to(device, dtype)
        yield sensitive(
            f"kernel.conv2d.{name}.{short(dtype)}",
            "conv",
            lambda x=x, weight=weight: F.conv2d(x, weight),
            lambda y, x=x, weight=weight: bounds.convolution(y, x, weight, inputs_roundoff("conv", x)),
            (REVERSED, lambda x=x, weight=weight: F.conv2d(x.flip(1), weight.flip(1))),
            racing("torch.nn.Conv2d", "cuda", device),
        )


def more_convolutions(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """With bias, stride and padding; in one dimension; and the gradient by the weight."""
    image = exact.bell((2, 64, 24, 24), "kernel.conv.x.3x3").to(device, dtype)
    kernel = exact.bell((64, 64, 3, 3), "kernel.conv.weight.3x3").to(device, dtype)
    series = filled((2, 64, 400), "kernel.border.a").to(device, dtype)
    taps = filled((48, 64, 5), "kernel.border.b", 1 << 19).to(device, dtype)
    bias = filled((64,), "kernel.border.bias", 160).to(device, dtype)
    cases = {
        "conv2d.stride2": (F.conv2d, image, kernel, bias, 2, 1, "torch.nn.Conv2d"),
        "conv1d.5": (F.conv1d, series, taps, bias[:48], 1, 2, "torch.nn.Conv1d"),
    }
    for name, (function, x, weight, offset, stride, padding, races) in cases.items():
        convolve = partial(function, bias=offset, stride=stride, padding=padding)
        yield sensitive(
            f"kernel.{name}.{short(dtype)}",
            "conv",
            partial(convolve, x, weight),
            lambda y, x=x, weight=weight, offset=offset, stride=stride, padding=padding: bounds.convolution(
                y, x, weight, inputs_roundoff("conv", x), offset, stride, padding
            ),
            (REVERSED, partial(convolve, x.flip(1), weight.flip(1))),
            races and racing(races, "cuda", device),
        )
    if dtype == torch.float32:  # in bfloat16 oneDNN's kernels of two instruction sets are 2e-3 apart
        yield _weight_gradient(image, exact.bell((2, 64, 22, 22), "kernel.conv.gradient").to(device))


def _weight_gradient(image: torch.Tensor, incoming: torch.Tensor) -> Stage:
    """Sums over batch and places; mirrored images and gradients give them reversed, and the result mirrored."""

    def gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.nn.grad.conv2d_weight(x, (64, 64, 3, 3), g)
        return found

    return sensitive(
        f"kernel.conv2d.weight_gradient.{short(image.dtype)}",
        "conv",
        lambda: gradient(image, incoming),
        lambda y: bounds.weight_gradient(y, image, incoming, inputs_roundoff("conv", image)),
        (REVERSED, lambda: gradient(image.flip(0, 2, 3), incoming.flip(0, 2, 3)).flip(2, 3)),
        racing("torch.nn.Conv2d", "cuda", image.device),
    )
