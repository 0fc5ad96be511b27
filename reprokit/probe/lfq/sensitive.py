"""What the stages of `kernel.*` share: how each is shown to be able to move, and what its inputs are rounded to."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch

from reprokit.probe import exact
from reprokit.probe.hashing import Array
from reprokit.probe.lfq import bounds
from reprokit.probe.recorder import Control, Stage, Twin, Unavailable

REVERSED = "the reduction in reversed order"
ONE_ULP = "one input moved by one ulp"
ALL_ULP = "every input moved by one ulp"
# how torch and cuBLAS say that a device has no such operator
_MISSING = ("not implemented", "Could not run", "only supported", "not supported", "NOT_SUPPORTED")
Function = Callable[[torch.Tensor], torch.Tensor]


def sensitive(
    name: str,
    operator: str,
    compute: Callable[[], Array],
    bound: Callable[..., float],
    control: tuple[str, Callable[[], Array]],
    races: str | None = None,
    twin: Twin | None = None,
) -> Stage:
    """A stage with a bound and a control; `races` as `racing` gives it."""
    return Stage(name, operator, compute, bound=bound, control=Control(*control), races=races, twin=twin)


def racing(operator: str, kind: str, device: torch.device) -> str | None:
    """`operator` on a device of the `kind`, cuda or cpu, on which torch documents it as nondeterministic.

    The lists stand in the documentation of `torch.use_deterministic_algorithms`.
    """
    return operator if device.type == kind else None


def short(dtype: torch.dtype) -> str:
    """A dtype as names of stages spell it."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}[
        dtype
    ]


def filled(shape: tuple[int, ...], stream: str, longest: int = 1 << 18) -> torch.Tensor:
    """float32 of `shape`, the head of one stream of `longest` numbers that stages of many shapes share."""
    return exact.bell((longest,), stream)[: math.prod(shape)].reshape(shape)


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
    if hasattr(setting, "fp32_precision"):
        return bounds.TF32 if setting.fp32_precision == "tf32" else 0.0
    old = torch.backends.cuda.matmul if operator == "matmul" else torch.backends.cudnn
    return bounds.TF32 if old.allow_tf32 else 0.0


def partials_roundoff(x: torch.Tensor) -> float:
    """Roundoff of partial sums in a product of `x`: cuBLAS may add those of a split K in 16 bits, as torch lets it.

    See `torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction`, which is on by default.
    """
    return bounds.roundoff(x.dtype) if x.device.type == "cuda" and x.element_size() == 2 else 0.0


@contextmanager
def where_supported(operator: str, device: torch.device) -> Iterator[None]:
    """Have what a device does not offer count as unavailable, and nothing else that fails.

    Raises:
        Unavailable: torch or cuBLAS says that there is no such operator here.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in _MISSING):
            raise
        raise Unavailable(f"torch has no {operator} on {device.type}") from error


def exactly(result: torch.Tensor, reference: np.ndarray) -> float:
    """0 where an operator that only moves values gives those of another library, infinite elsewhere."""
    return 0.0 if np.array_equal(result.cpu().numpy(), reference) else float("inf")


def nudged(x: torch.Tensor, position: int | None = None) -> torch.Tensor:
    """`x` with its element at a flat position (by default the largest) moved to the next number of its dtype."""
    y = x.clone()
    flat = y.view(-1)
    at = int(flat.float().argmax()) if position is None else position
    flat[at] = next_number(flat[at])
    return y


def next_number(x: torch.Tensor) -> torch.Tensor:
    """The next larger number of its dtype for each element."""
    return torch.nextafter(x, torch.full_like(x, torch.inf))
