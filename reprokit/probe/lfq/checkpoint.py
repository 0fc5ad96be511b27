"""What a checkpoint holds: weights, their moving average beside them, the optimiser's state, every dtype in use.

Everything is exact: multiplications by powers of two, then one addition that rounds once. So a fused
multiply-add, which would round another number of times elsewhere, changes nothing here.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from reprokit.probe import exact
from reprokit.probe.hashing import sha256
from reprokit.probe.lfq import quantiser, scratch
from reprokit.probe.lfq.formats import E4M3, E5M2
from reprokit.probe.lfq.model import Weights

DECAY = 0.5
AGES = (4, 2, 1, 0)  # steps back of the checkpoints that are averaged: powers of two
STEP = 2.0**-7  # length of a step, relative to the weights
# codes of the table of dtypes; a new one goes to the end
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.uint8,
)
SECTIONS = ("model", "ema", "optimizer")


def moving_average(weights: Weights) -> Weights:
    """The exponential moving average, in each tensor's dtype, of the weights over their last steps."""
    return {name: _averaged(weight) for name, weight in weights.items()}


def _averaged(weight: torch.Tensor) -> torch.Tensor:
    step = weight.roll(1, 0) * STEP  # any direction in which they might have come
    average = weight - step * AGES[0]
    for age in AGES[1:]:
        average = DECAY * average + DECAY * (weight - step * age)
    return average


def dtypes(weights: Weights) -> torch.Tensor:
    """int64 (tensors,): the code of each tensor's dtype, in the order of their names; −1 for one that has none."""
    codes = {dtype: code for code, dtype in enumerate(DTYPES)}
    return torch.tensor([codes.get(weights[name].dtype, -1) for name in sorted(weights)])


def written_and_read(weights: Weights) -> dict[str, Any]:
    """A checkpoint of the weights as `torch.save` writes it and `torch.load` gives it back."""
    content = {
        "model": {**weights, **_of_every_dtype(), "special": _special()},
        "ema": moving_average(weights),
        "optimizer": _optimiser(weights),
    }
    with scratch.folder() as folder:
        path = folder / "checkpoint.pt"
        torch.save(content, path)
        loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


def digests(section: dict[str, Any]) -> torch.Tensor:
    """uint8 (tensors, 32): the SHA-256 of each one's name, dtype, shape and bytes, in the order of the names."""
    flat = dict(sorted(_flat(section).items()))
    found = [hashlib.sha256(f"{name} {sha256(tensor)}".encode()).digest() for name, tensor in flat.items()]
    return torch.tensor([list(digest) for digest in found], dtype=torch.uint8)


def _flat(value: Any, path: str = "") -> Weights:
    """The tensors in nested dictionaries and lists by their paths; a number counts as a float64 tensor."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, (int, float)):
        return {path: torch.tensor(value, dtype=torch.float64)}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: tensor for key, inner in items for name, tensor in _flat(inner, f"{path}.{key}").items()}


def _optimiser(weights: Weights) -> dict[str, Any]:
    """State of Adam (Kingma, Ba 2015) after two steps with both decays ½, as `torch.optim` lays it out."""
    state = {}
    for index, weight in enumerate(weights.values()):
        first, second = weight.roll(1, 0) * STEP, weight.roll(2, 0) * STEP  # the gradients
        squares = [gradient * gradient for gradient in (first, second)]  # an operation of its own rounds them
        state[index] = {
            "step": torch.tensor(2.0),
            "exp_avg": 0.25 * first + 0.5 * second,
            "exp_avg_sq": 0.25 * squares[0] + 0.5 * squares[1],
        }
    group = {"lr": 2.0**-10, "betas": (DECAY, DECAY), "params": list(state)}
    return {"state": state, "param_groups": [group]}


def _of_every_dtype() -> Weights:
    """(16, 32) of each narrow dtype, put together from codes or exact numbers, so that no cast rounds."""
    small = (
        exact.below(511, (16, 32), "checkpoint.small") - 255
    )  # eight bits and a sign: exact in bfloat16 too
    narrow = {
        f"narrow.{dtype}".replace("torch.", ""): (small.float() * 2.0**-10).to(dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.float64)
    }
    x = exact.bell((16, 32), "checkpoint.fp8")
    for form, dtype in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)):
        low_bit = quantiser.quantise(x, form)
        narrow[f"narrow.{form.name}"] = low_bit.codes.view(dtype)
        narrow[f"narrow.{form.name}.scales"] = low_bit.scales
    return narrow


def _special() -> torch.Tensor:
    """float32: both zeros, the least subnormal and normal numbers, the largest one, infinities and NaN."""
    return torch.tensor(
        [
            0.0,
            -0.0,
            2.0**-149,
            -(2.0**-149),
            2.0**-126,
            3.4028234663852886e38,
            torch.inf,
            -torch.inf,
            torch.nan,
        ]
    )
