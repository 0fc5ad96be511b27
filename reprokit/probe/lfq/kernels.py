"""`kernel.*`: each operator class alone on full-mantissa inputs, held to a float64 reference.

One stage each, so that one changed kernel does not hide the others. Shapes cross the borders where libraries
choose another kernel: one row, a length that no vector width divides, more rows than a tile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.hashing import Array
from reprokit.probe.lfq import bounds
from reprokit.probe.recorder import Control, Stage, Unavailable

REVERSED = "the reduction in reversed order"
ONE_ULP = "one input moved by one ulp"
ALL_ULP = "every input moved by one ulp"
QUICK_GEMMS = ((1, 1000, 64), (64, 1000, 64), (255, 1001, 128))
FULL_GEMMS = (
    *QUICK_GEMMS,
    (8, 1024, 256),
    (16, 1000, 128),
    (32, 1024, 64),
    (256, 1024, 256),
    (512, 512, 512),
)
Function = Callable[[torch.Tensor], torch.Tensor]


def kernel_stages(device: torch.device, full: bool) -> Iterator[Stage]:
    """All kernels; `full` adds shapes and dtypes."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from _gemms(device, dtype, full)
        yield from _convolutions(device, dtype, full)
        yield from _along_rows(device, dtype)
        yield from _attentions(device, dtype)
    yield from _rows(device)
    yield from _reductions(device)
    yield from _elementwise(device)
    yield from _indexing(device)
    yield from _numpy(full)


def inputs_roundoff(operator: Literal["matmul", "conv"], x: torch.Tensor) -> float:
    """Roundoff of what an operator makes of its inputs: that of TF32 where a GPU computes float32 in it, else 0.

    cuDNN does so by default, cuBLAS on request, and NVIDIA_TF32_OVERRIDE decides over both.
    """
    if x.device.type != "cuda" or x.dtype != torch.float32:
        return 0.0
    override = os.environ.get("NVIDIA_TF32_OVERRIDE")
    if override in ("0", "1"):
        return bounds.TF32 if override == "1" else 0.0
    # the new settings: the old ones refuse to answer where both were used
    setting = torch.backends.cuda.matmul if operator == "matmul" else torch.backends.cudnn.conv
    return bounds.TF32 if setting.fp32_precision == "tf32" else 0.0


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64"}[dtype]


def _gemms(device: torch.device, dtype: torch.dtype, full: bool) -> Iterator[Stage]:
    for m, k, n in FULL_GEMMS if full else QUICK_GEMMS:
        if dtype == torch.bfloat16 and m * n < 10_000:
            continue  # too few results for a reordered sum to show in eight bits
        a = exact.bell((m, k), f"kernel.gemm.a.{m}x{k}").to(device, dtype)
        b = exact.bell((k, n), f"kernel.gemm.b.{k}x{n}").to(device, dtype)
        yield _stage(
            f"kernel.gemm.{m}x{k}x{n}.{_short(dtype)}",
            "gemm",
            lambda a=a, b=b: a @ b,
            lambda y, a=a, b=b: bounds.product(y, a, b, inputs_roundoff("matmul", a)),
            (REVERSED, lambda a=a, b=b: a.flip(1) @ b.flip(0)),
        )


def _rows(device: torch.device) -> Iterator[Stage]:
    """Row 3 of a product: computed alone, and taken from the product of the whole batch."""
    a = exact.bell((33, 1000), "kernel.rows.a").to(device)
    b = exact.bell((1000, 96), "kernel.rows.b").to(device)
    for name, batch, row in (("row_alone", slice(3, 4), 0), ("row_in_batch", slice(None), 3)):
        yield _stage(
            f"kernel.{name}.fp32",
            "gemm",
            lambda batch=batch, row=row: (a[batch] @ b)[row],
            lambda y: bounds.product(y, a[3], b, inputs_roundoff("matmul", a)),
            (REVERSED, lambda batch=batch, row=row: (a[batch].flip(1) @ b.flip(0))[row]),
        )


def _convolutions(device: torch.device, dtype: torch.dtype, full: bool) -> Iterator[Stage]:
    shapes = {"3x3": ((2, 64, 24, 24), (64, 64, 3, 3))}
    if full:
        shapes["1x1"] = ((2, 64, 20, 20), (48, 64, 1, 1))
    if full and dtype == torch.float32:  # in bfloat16 its few channels leave a reordered sum nothing to show
        shapes["5x5"] = ((2, 9, 31, 31), (17, 9, 5, 5))
    for name, (image, kernel) in shapes.items():
        x = exact.bell(image, f"kernel.conv.x.{name}").to(device, dtype)
        weight = exact.bell(kernel, f"kernel.conv.weight.{name}").to(device, dtype)
        yield _stage(
            f"kernel.conv2d.{name}.{_short(dtype)}",
            "conv",
            lambda x=x, weight=weight: F.conv2d(x, weight),
            lambda y, x=x, weight=weight: bounds.convolution(y, x, weight, inputs_roundoff("conv", x)),
            (REVERSED, lambda x=x, weight=weight: F.conv2d(x.flip(1), weight.flip(1))),
        )


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
        yield _stage(
            f"kernel.{name}.{_short(dtype)}",
            operator,
            lambda function=function, argument=argument: function(argument),
            lambda y, argument=argument, bound=bound: bound(y, argument),
            (REVERSED, lambda function=function, argument=argument: function(argument.flip(-1)).flip(-1)),
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
    backends = ["default", "math", "flash_attention"]
    if device.type == "cuda":
        backends += ["efficient_attention", "cudnn_attention"]
    elif dtype == torch.bfloat16:
        # torch 2.13's flash kernel on CPU raises when ATEN_CPU_CAPABILITY is below what the hardware has
        backends = ["math"]
    for backend in backends:
        yield _stage(
            f"kernel.attention.{backend}.{_short(dtype)}",
            "attention",
            lambda backend=backend: _attend(backend, q, k, v),
            lambda y: bounds.attention(y, q, k, v, inputs_roundoff("matmul", q)),
            (REVERSED, lambda backend=backend: _attend(backend, q.flip(-1), k.flip(-1), v)),
        )


def _attend(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if backend == "default":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([getattr(SDPBackend, backend.upper())]):
        try:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            raise Unavailable(f"torch has no {backend} kernel for {q.dtype} on this device") from error


def _reductions(device: torch.device) -> Iterator[Stage]:
    x = exact.uniform((1 << 20,), "kernel.sum").to(device)
    grid = x.reshape(1024, 1024)
    yield _stage(
        "kernel.sum.fp32",
        "reduction",
        lambda: x.sum(),
        lambda y: bounds.total(y, x, 0),
        (REVERSED, lambda: x.flip(0).sum()),
    )
    for name, dim in (("sum_rows", 1), ("sum_columns", 0)):
        yield _stage(
            f"kernel.{name}.fp32",
            "reduction",
            lambda dim=dim: grid.sum(dim),
            lambda y, dim=dim: bounds.total(y, grid, dim),
            (REVERSED, lambda dim=dim: grid.flip(dim).sum(dim)),
        )
    yield _stage(
        "kernel.cumsum.fp32",
        "reduction",
        lambda: x[:65537].cumsum(0),
        lambda y: bounds.running_total(y, x[:65537]),
        (ONE_ULP, lambda: _nudged(x[:65537]).cumsum(0)),
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
            yield _stage(
                f"kernel.{name}.{_short(dtype)}",
                "elementwise",
                lambda function=function, argument=argument: function(argument),
                lambda y, name=name, argument=argument, condition=condition: bounds.elementwise(
                    y, _reference(name, argument), condition(argument.double(), _reference(name, argument))
                ),
                (ALL_ULP, lambda function=function, argument=argument: function(_next(argument))),
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


def _indexing(device: torch.device) -> Iterator[Stage]:
    table = exact.bell((1000, 64), "kernel.gather.table").to(device)
    index = exact.below(1000, (4099,), "kernel.gather.index").to(device)
    yield _stage(
        "kernel.gather.fp32",
        "gather",
        lambda: F.embedding(index, table),
        lambda y: exactly(y, table.cpu().numpy()[index.cpu().numpy()]),
        (ONE_ULP, lambda: F.embedding(index, _nudged(table, int(index[0]) * 64))),
    )
    source = exact.bell((4099, 64), "kernel.scatter.source").to(device)
    rows = exact.below(37, (4099,), "kernel.scatter.index").to(device)
    zeros = torch.zeros(37, 64, device=device)
    wide = rows.unsqueeze(-1).expand(-1, 64)
    scatters: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "scatter_add": lambda r, w, s: zeros.scatter_add(0, w, s),
        "index_add": lambda r, w, s: zeros.index_add(0, r, s),
    }
    for name, function in scatters.items():
        yield _stage(
            f"kernel.{name}.fp32",
            "scatter",
            lambda function=function: function(rows, wide, source),
            lambda y: bounds.scattered(y, rows, source),
            (REVERSED, lambda function=function: function(rows.flip(0), wide.flip(0), source.flip(0))),
        )
    ties = (exact.below(64, (16, 1000), "kernel.topk").float() / 8).to(
        device
    )  # every value some fifteen times
    yield _stage(
        "kernel.topk.ties",
        "sort",
        lambda: torch.stack([part.double() for part in torch.topk(ties, 50)]),
        lambda y: exactly(y[0], -np.sort(-ties.cpu().numpy(), axis=1)[:, :50]),
        (ONE_ULP, lambda: torch.stack([part.double() for part in torch.topk(_nudged(ties), 50)])),
    )
    values = exact.bell((4099,), "kernel.sort").to(device)
    yield _stage(
        "kernel.sort.fp32",
        "sort",
        lambda: values.sort().values,
        lambda y: exactly(y, np.sort(values.cpu().numpy())),
        (ONE_ULP, lambda: _nudged(values).sort().values),
    )


def exactly(result: torch.Tensor, reference: np.ndarray) -> float:
    """0 where an operator that only moves values gives those of another library, infinite elsewhere."""
    return 0.0 if np.array_equal(result.cpu().numpy(), reference) else float("inf")


def _numpy(full: bool) -> Iterator[Stage]:
    """NumPy's own kernels: pairwise sums, vectorised functions and the BLAS that its wheel carries."""
    x = exact.uniform((1 << 20,), "kernel.numpy.sum").numpy()
    rows = x.reshape(1024, 1024)[:255]
    yield _stage(
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
    yield _stage(
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
        yield _stage(
            f"kernel.numpy_matmul.{m}x{k}x{n}.fp32",
            "gemm",
            lambda a=a, b=b: a @ b,
            lambda y, a=a, b=b: bounds.product(torch.from_numpy(y), torch.from_numpy(a), torch.from_numpy(b)),
            (REVERSED, lambda a=a, b=b: np.ascontiguousarray(a[:, ::-1]) @ np.ascontiguousarray(b[::-1])),
        )


def _nudged(x: torch.Tensor, position: int | None = None) -> torch.Tensor:
    """`x` with its element at a flat position (by default the largest) moved to the next number of its dtype."""
    y = x.clone()
    flat = y.view(-1)
    at = int(flat.float().argmax()) if position is None else position
    flat[at] = _next(flat[at])
    return y


def _next(x: torch.Tensor) -> torch.Tensor:
    """The next larger number of its dtype for each element."""
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def _stage(
    name: str,
    operator: str,
    compute: Callable[[], Array],
    bound: Callable[..., float],
    control: tuple[str, Callable[[], Array]],
) -> Stage:
    return Stage(name, operator, compute, bound=bound, control=Control(*control))
