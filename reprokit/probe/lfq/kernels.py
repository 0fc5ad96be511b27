"""`kernel.*`: each operator class alone on full-mantissa inputs, held to a float64 reference.

One stage each, so that one changed kernel does not hide the others. Shapes cross the borders where libraries
choose another kernel. Here are the operators along rows, over all elements and element by element; products,
indexing and what needs a GPU have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import bounds, gpu_kernels, indexing, products
from reprokit.probe.lfq.attention import DEFAULT, attend, backends
from reprokit.probe.lfq.sensitive import (
    ALL_ULP,
    ONE_ULP,
    REVERSED,
    Function,
    filled,
    inputs_roundoff,
    next_number,
    nudged,
    racing,
    sensitive,
    short,
)
from reprokit.probe.recorder import Stage


def kernel_stages(device: torch.device, full: bool) -> Iterator[Stage]:
    """All kernels; `full` adds shapes, dtypes and operators, and those of a GPU."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from products.gemms(device, dtype, full)
        yield from products.convolutions(device, dtype, full)
        yield from _along_rows(device, dtype)
        yield from _attentions(device, dtype)
    if full:
        yield from _more(device)
    yield from products.rows(device)
    yield from _reductions(device)
    yield from _elementwise(device)
    yield from indexing.indexing(device, full)
    yield from _numpy(full)
    if full:
        yield from gpu_kernels.gpu_stages(device)


def _more(device: torch.device) -> Iterator[Stage]:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield from products.border_gemms(device, dtype)
        if (
            dtype != torch.float16
        ):  # a CPU without float16 units takes a hundred times as long for a convolution
            yield from products.layouts(device, dtype)
            yield from products.more_convolutions(device, dtype)
        else:
            yield from _attentions(device, dtype)
        if dtype != torch.bfloat16:  # its few bits hide the order of sums of 256 terms
            yield from _bordering_rows(device, dtype)
        yield from _grouped_attentions(device, dtype)


def _along_rows(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """Softmax and norms along rows of 1,000; the control reverses the row and the result back again."""
    x = exact.bell((255, 1000), "kernel.rows.x").to(device)
    ordinary, large = (
        (x * 2).to(dtype),
        (x * 64).to(dtype),
    )  # up to 8, where exp is harmless, and far beyond 88
    cases: dict[str, tuple[str, Function, torch.Tensor, Callable[..., float]]] = {
        "softmax": ("softmax", softmax, ordinary, bounds.softmax),
        "layer_norm": (
            "norm",
            lambda x: F.layer_norm(x, x.shape[-1:]),
            ordinary,
            partial(bounds.norm, centred=True),
        ),
        "rms_norm": ("norm", rms_norm, ordinary, partial(bounds.norm, centred=False)),
    }
    if dtype == torch.float32:  # their bfloat16 results are too few bits to show a reordered sum
        cases |= {
            "softmax_large": ("softmax", softmax, large, bounds.softmax),
            "log_softmax": ("softmax", lambda x: F.log_softmax(x, -1), ordinary, bounds.log_softmax),
        }
    for name, (operator, function, argument, bound) in cases.items():
        yield sensitive(
            f"kernel.{name}.{short(dtype)}",
            operator,
            lambda function=function, argument=argument: function(argument),
            lambda y, argument=argument, bound=bound: bound(y, argument),
            (REVERSED, lambda function=function, argument=argument: function(argument.flip(-1)).flip(-1)),
        )


def _bordering_rows(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """Rows of 255, 256 and 257, as many of them: lengths around those that kernels are specialised for."""
    cases: dict[str, tuple[str, Function, Callable[..., float]]] = {
        "rms_norm": ("norm", rms_norm, partial(bounds.norm, centred=False)),
    }
    if dtype == torch.float32:
        cases["log_softmax"] = ("softmax", lambda x: F.log_softmax(x, -1), bounds.log_softmax)
    for name, (operator, function, bound) in cases.items():
        for n in (255, 256, 257):
            x = (filled((n, n), "kernel.border.a") * 2).to(device, dtype)
            yield sensitive(
                f"kernel.{name}.{n}x{n}.{short(dtype)}",
                operator,
                lambda function=function, x=x: function(x),
                lambda y, bound=bound, x=x: bound(y, x),
                (REVERSED, lambda function=function, x=x: function(x.flip(-1)).flip(-1)),
            )


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the last dimension."""
    return torch.softmax(x, dim=-1)


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm along the last dimension, epsilon that of float32."""
    return F.rms_norm(x, x.shape[-1:], eps=torch.finfo(torch.float32).eps)


def _attentions(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """Causal attention through each backend by name and through the one that torch picks."""
    q, k, v = (exact.bell((2, 4, 140, 64), f"kernel.attention.{part}").to(device, dtype) for part in "qkv")
    for backend in backends(device, dtype):
        yield sensitive(
            f"kernel.attention.{backend}.{short(dtype)}",
            "attention",
            lambda backend=backend: attend(backend, q, k, v),
            lambda y: bounds.attention(y, q, k, v, inputs_roundoff("matmul", q)),
            (REVERSED, lambda backend=backend: attend(backend, q.flip(-1), k.flip(-1), v)),
        )


def _grouped_attentions(device: torch.device, dtype: torch.dtype) -> Iterator[Stage]:
    """Eight heads of queries over two of keys and values; 128, the tile of most kernels, does not divide 140."""
    q = exact.bell((2, 8, 140, 64), "kernel.grouped.q").to(device, dtype)
    k, v = (exact.bell((2, 2, 140, 64), f"kernel.grouped.{part}").to(device, dtype) for part in "kv")
    for backend in backends(device, dtype):
        if backend in (DEFAULT, "math"):
            yield sensitive(
                f"kernel.grouped_attention.{backend}.{short(dtype)}",
                "attention",
                lambda backend=backend: _grouped(backend, q, k, v),
                lambda y: bounds.attention(y, q, k, v, inputs_roundoff("matmul", q)),
                (REVERSED, lambda backend=backend: _grouped(backend, q.flip(-1), k.flip(-1), v)),
            )


def _grouped(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with nullcontext() if backend == DEFAULT else sdpa_kernel([SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _reductions(device: torch.device) -> Iterator[Stage]:
    x = exact.uniform((1 << 20,), "kernel.sum").to(device)
    grid = x.reshape(1024, 1024)
    yield sensitive(
        "kernel.sum.fp32",
        "reduction",
        lambda: x.sum(),
        lambda y: bounds.total(y, x, 0),
        (REVERSED, lambda: x.flip(0).sum()),
    )
    for name, dim in (("sum_rows", 1), ("sum_columns", 0)):
        yield sensitive(
            f"kernel.{name}.fp32",
            "reduction",
            lambda dim=dim: grid.sum(dim),
            lambda y, dim=dim: bounds.total(y, grid, dim),
            (REVERSED, lambda dim=dim: grid.flip(dim).sum(dim)),
        )
    yield sensitive(
        "kernel.cumsum.fp32",
        "reduction",
        lambda: x[:65537].cumsum(0),
        lambda y: bounds.running_total(y, x[:65537]),
        (ONE_ULP, lambda: nudged(x[:65537]).cumsum(0)),
        racing("torch.cumsum", "cuda", device),
    )


def _elementwise(device: torch.device) -> Iterator[Stage]:
    x = exact.bell((65536,), "kernel.elementwise").to(device)
    cases: dict[str, tuple[Function, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
        # the second is the condition of the evaluation, in units of which a few roundoffs are allowed
        "gelu": (gelu, lambda x, y: 4 * x),  # error functions of vector libraries err by 2e-7
        "exp": (torch.exp, lambda x, y: y * (1 + x.abs())),
        "log": (lambda x: torch.log(x.abs() + 0.5), lambda x, y: torch.ones_like(x)),
        "tanh": (torch.tanh, lambda x, y: y),
        "silu": (F.silu, lambda x, y: x),
    }
    for name, (function, condition) in cases.items():
        for dtype in (torch.float32, torch.bfloat16) if name in ("gelu", "silu") else (torch.float32,):
            argument = x.to(dtype)
            yield sensitive(
                f"kernel.{name}.{short(dtype)}",
                "elementwise",
                lambda function=function, argument=argument: function(argument),
                lambda y, name=name, argument=argument, condition=condition: bounds.elementwise(
                    y, _reference(name, argument), condition(argument.double(), _reference(name, argument))
                ),
                (ALL_ULP, lambda function=function, argument=argument: function(next_number(argument))),
            )


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x Φ(x), by the error function (Hendrycks, Gimpel 2016)."""
    return F.gelu(x)


def _reference(name: str, x: torch.Tensor) -> torch.Tensor:
    """float64 values of an elementwise function, written apart from the function under test."""
    x = x.double()
    return {
        "gelu": lambda: x * torch.special.ndtr(x),
        "exp": lambda: torch.exp(x),
        "log": lambda: torch.log(x.abs() + 0.5),
        "tanh": lambda: 1 - 2 / (torch.exp(2 * x) + 1),
        "silu": lambda: x / (1 + torch.exp(-x)),
    }[name]()


def _numpy(full: bool) -> Iterator[Stage]:
    """NumPy's own kernels: pairwise sums, vectorised functions and the BLAS that its wheel carries."""
    x = exact.uniform((1 << 20,), "kernel.numpy.sum").numpy()
    rows = x.reshape(1024, 1024)[:255]
    yield sensitive(
        "kernel.numpy_sum.fp32",
        "reduction",
        lambda: np.concatenate((rows.sum(axis=1), rows.sum(axis=0), [x.sum()])).astype(np.float32),
        lambda y: max(
            bounds.total(torch.from_numpy(y[:255]), torch.from_numpy(rows), 1),
            bounds.total(torch.from_numpy(y[255:-1]), torch.from_numpy(rows), 0),
            bounds.total(torch.from_numpy(y[-1:]), torch.from_numpy(x[None]), 1),
        ),
        (
            REVERSED,
            lambda: np.concatenate((rows[:, ::-1].sum(1), rows[::-1].sum(0), [x[::-1].sum()])).astype(
                np.float32
            ),
        ),
    )
    wide = exact.bell((4099,), "kernel.numpy.exp").numpy().astype(np.float64)
    exp64 = torch.from_numpy(wide)
    yield sensitive(
        "kernel.numpy_exp.fp64",
        "elementwise",
        lambda: np.exp(wide),
        lambda y: bounds.elementwise(
            torch.from_numpy(y), torch.exp(exp64), torch.exp(exp64) * (1 + exp64.abs())
        ),
        (ALL_ULP, lambda: np.exp(np.nextafter(wide, np.inf))),
    )
    for m, k, n in ((255, 1001, 128), (512, 512, 512)) if full else ((255, 1001, 128),):
        a = exact.bell((m, k), f"kernel.numpy.a.{m}x{k}").numpy()
        b = exact.bell((k, n), f"kernel.numpy.b.{k}x{n}").numpy()
        yield sensitive(
            f"kernel.numpy_matmul.{m}x{k}x{n}.fp32",
            "gemm",
            lambda a=a, b=b: a @ b,
            lambda y, a=a, b=b: bounds.product(torch.from_numpy(y), torch.from_numpy(a), torch.from_numpy(b)),
            (REVERSED, lambda a=a, b=b: np.ascontiguousarray(a[:, ::-1]) @ np.ascontiguousarray(b[::-1])),
        )
