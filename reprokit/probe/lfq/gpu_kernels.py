"""`kernel.*`, what needs a GPU: a split K, large products, FP8, TF32 on and off, a captured graph, a compiled function.

On a CPU each of them is unavailable and says so, so that both kinds of machine state the same stages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.hashing import Array
from reprokit.probe.lfq import bounds
from reprokit.probe.lfq.precision import tf32
from reprokit.probe.lfq.products import held
from reprokit.probe.lfq.sensitive import REVERSED, filled, racing, sensitive, short, where_supported
from reprokit.probe.recorder import Stage, Twin, Unavailable

# a K so long that libraries split it, and two sizes that fill a GPU
SHAPES = ((64, 16384, 64), (2048, 2048, 2048), (4096, 4096, 4096))
FP8_SHAPE = (256, 256, 512)  # K short, since a sum's bound grows with it, and K and N multiples of 16


def gpu_stages(device: torch.device) -> Iterator[Stage]:
    """Every stage of this module; off a GPU no input is made and no kernel runs."""
    found = (*_large(device), _fp8(device), *_tf32(device), *_captured(device), _compiled(device))
    for stage in found:
        yield stage if device.type == "cuda" else Stage(stage.name, stage.operator, _without)


def _without() -> Array:
    raise Unavailable("needs a GPU")


def _large(device: torch.device) -> Iterator[Stage]:
    for m, k, n in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):

            def operands(m: int = m, k: int = k, n: int = n, dtype: torch.dtype = dtype) -> Any:
                return _operands(m, k, n, device, dtype)

            yield sensitive(
                f"kernel.gemm.{m}x{k}x{n}.{short(dtype)}",
                "gemm",
                lambda operands=operands: torch.matmul(*operands()),
                # a float64 product of this size takes a CPU seconds; the GPU's own has known answers of its own
                lambda y, operands=operands: held(*operands(), on=device)(y),
                (REVERSED, lambda operands=operands: _reversed(*operands())),
            )


@lru_cache(maxsize=2)
def _operands(m: int, k: int, n: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """(m, k) and (k, n), uniform, from two streams that all sizes share."""
    longest = max(m * k for m, k, _ in SHAPES)
    a, b = (exact.uniform((longest,), f"kernel.large.{part}") for part in "ab")
    return a[: m * k].reshape(m, k).to(device, dtype), b[: k * n].reshape(k, n).to(device, dtype)


def _reversed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.flip(1) @ b.flip(0)


def _fp8(device: torch.device) -> Stage:
    """E4M3 by E4M3 into bfloat16, the second operand stored column by column as the kernel wants it."""
    m, k, n = FP8_SHAPE

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        a, b = filled((m, k), "kernel.border.a"), filled((n, k), "kernel.border.b", 1 << 19)
        return a.to(device, torch.float8_e4m3fn), b.to(device, torch.float8_e4m3fn).T

    return sensitive(
        f"kernel.gemm_fp8.{m}x{k}x{n}.bf16",
        "gemm",
        lambda: scaled(*operands(), torch.bfloat16),
        lambda y: bounds.product(y, *(part.float() for part in operands()), accumulator=bounds.FP8_SUM),
        (REVERSED, lambda: scaled(*_reversed_fp8(*operands()), torch.bfloat16)),
    )


def scaled(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """FP8 product (m, k) by (k, n) with scales of one, into `dtype`.

    Raises:
        Unavailable: this torch has no such operator, or this device no FP8 units.
    """
    if not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this torch has no FP8 product")
    if a.device.type == "cuda" and torch.cuda.get_device_capability(a.device) < (8, 9):
        raise Unavailable("no FP8 units on this architecture: they came with compute capability 8.9")
    one = torch.ones((), device=a.device)
    with where_supported("FP8 product", a.device):
        return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=dtype)


def _reversed_fp8(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands with K reversed; not every device flips FP8, so that their bytes are flipped."""
    ours, theirs = (part.view(torch.uint8).flip(1).view(part.dtype) for part in (a, b.T))
    return ours, theirs.T


def _tf32(device: torch.device) -> Iterator[Stage]:
    """One product and one convolution with TF32 asked for and refused."""
    for enabled, name in ((True, "on"), (False, "off")):
        override = os.environ.get("NVIDIA_TF32_OVERRIDE")  # decides over what a process asks for
        allowed = bounds.TF32 if (override == "1" if override in ("0", "1") else enabled) else 0.0

        def product(a: torch.Tensor, b: torch.Tensor, enabled: bool = enabled) -> torch.Tensor:
            with tf32(enabled):
                return a @ b

        def convolve(x: torch.Tensor, w: torch.Tensor, enabled: bool = enabled) -> torch.Tensor:
            with tf32(enabled):
                return F.conv2d(x, w)

        def factors() -> tuple[torch.Tensor, torch.Tensor]:
            return (
                filled((256, 1000), "kernel.border.a").to(device),
                filled((1000, 256), "kernel.border.b", 1 << 19).to(device),
            )

        def image_and_kernel() -> tuple[torch.Tensor, torch.Tensor]:
            return (
                exact.bell((2, 64, 24, 24), "kernel.conv.x.3x3").to(device),
                exact.bell((64, 64, 3, 3), "kernel.conv.weight.3x3").to(device),
            )

        yield sensitive(
            f"kernel.gemm_tf32_{name}.256x1000x256.fp32",
            "gemm",
            lambda product=product: product(*factors()),
            lambda y, allowed=allowed: bounds.product(y, *factors(), allowed),
            (REVERSED, lambda product=product: product(*_flipped(*factors(), 1, 0))),
        )
        yield sensitive(
            f"kernel.conv2d_tf32_{name}.3x3.fp32",
            "conv",
            lambda convolve=convolve: convolve(*image_and_kernel()),
            lambda y, allowed=allowed: bounds.convolution(y, *image_and_kernel(), allowed),
            (REVERSED, lambda convolve=convolve: convolve(*_flipped(*image_and_kernel(), 1, 1))),
            racing("torch.nn.Conv2d", "cuda", device),
        )


def _flipped(x: torch.Tensor, y: torch.Tensor, of_x: int, of_y: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x.flip(of_x), y.flip(of_y)


def _captured(device: torch.device) -> Iterator[Stage]:
    """A product called eagerly, and the same one captured into a CUDA graph and replayed."""

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        return (
            filled((256, 1000), "kernel.border.a").to(device),
            filled((1000, 256), "kernel.border.b", 1 << 19).to(device),
        )

    def eager() -> torch.Tensor:
        return torch.matmul(*operands())

    ways: dict[str, tuple[Callable[..., torch.Tensor], Twin | None]] = {
        "eager": (torch.matmul, None),
        "graph": (_replayed, Twin("kernel.captured.eager.fp32", eager)),
    }
    for name, (function, twin) in ways.items():
        yield sensitive(
            f"kernel.captured.{name}.fp32",
            "gemm",
            lambda function=function: function(*operands()),
            lambda y: held(*operands())(y),
            (REVERSED, lambda function=function: function(*_flipped(*operands(), 1, 0))),
            twin=twin,
        )


def _replayed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product by a graph, whose output is cleared between capture and replay."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        torch.matmul(a, b)  # libraries set themselves up, which a capture does not allow
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # other threads may work on the GPU meanwhile, as they do while the probe runs under load
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = torch.matmul(a, b)
    result.zero_()
    graph.replay()
    return result.clone()


def _compiled(device: torch.device) -> Stage:
    """Softmax along rows, compiled, which imports dynamo and inductor: seconds."""

    def x() -> torch.Tensor:
        return filled((255, 1000), "kernel.border.a").to(device) * 2

    return sensitive(
        "kernel.compiled.softmax.fp32",
        "softmax",
        lambda: _by_inductor(x()),
        lambda y: bounds.softmax(y, x()),
        (REVERSED, lambda: _by_inductor(x().flip(-1)).flip(-1)),
    )


def _by_inductor(x: torch.Tensor) -> torch.Tensor:
    try:
        return _compiled_softmax()(x)
    except Exception as error:  # its own exceptions, of several modules that are imported only by then
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton")):
            raise
        raise Unavailable(f"torch.compile cannot compile here: {type(error).__name__}") from error


@lru_cache(maxsize=1)
def _compiled_softmax() -> Callable[[torch.Tensor], torch.Tensor]:
    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        lambda x: torch.softmax(x, -1), dynamic=False
    )
    return compiled
