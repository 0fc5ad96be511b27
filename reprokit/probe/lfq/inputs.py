"""`rng.*`, `data.*` and `weights.*`: what goes into the computation."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from reprokit.probe import exact
from reprokit.probe.hashing import Array
from reprokit.probe.lfq import model
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Control, Stage

BATCH, LENGTH = 2, 64
STREAM = 4099  # elements of each random stream: no multiple of a vector width
PIXELS = 64
DIGITS = Path(__file__).with_name("digits.csv.gz")


def rng_stages(device: torch.device, seed: int) -> Iterator[Stage]:
    """Streams of Python, NumPy and torch after seeding; integers and uniforms apart from normal numbers."""
    streams: dict[str, Callable[[int], Array]] = {
        "rng.python": _python_stream,
        "rng.numpy_legacy": lambda s: np.random.RandomState(s).random_sample(STREAM),
        "rng.numpy_uniform": lambda s: np.random.default_rng(s).random(STREAM),
        "rng.numpy_normal": lambda s: np.random.default_rng(s).standard_normal(STREAM),
        "rng.torch_uniform": lambda s: _seeded(s, torch.device("cpu"), torch.rand),
        "rng.torch_normal": lambda s: _seeded(s, torch.device("cpu"), torch.randn),
        "rng.torch_permutation": lambda s: torch.randperm(STREAM, generator=torch.Generator().manual_seed(s)),
    }
    if device.type == "cuda":
        streams |= {
            "rng.cuda_uniform": lambda s: _seeded(s, device, torch.rand),
            "rng.cuda_normal": lambda s: _seeded(s, device, torch.randn),
        }
    for name, stream in streams.items():
        yield Stage(
            name,
            "rng",
            lambda stream=stream: stream(seed),
            control=Control("the next seed", lambda stream=stream: stream(seed + 1)),
        )


def data_stages() -> Iterator[Stage]:
    """Tokens, a shuffled order, both paddings with their masks and the digits file, all known answers."""
    yield known("data.digits", "data", lambda: digits()[0])
    yield known("data.labels", "data", lambda: digits()[1])
    yield known("data.tokens", "data", lambda: tokens(torch.device("cpu")))
    yield known("data.shuffle", "data", lambda: exact.permutation(1797, "data.shuffle"))
    yield known("data.padding_left", "data", lambda: _padded("left"))
    yield known("data.padding_right", "data", lambda: _padded("right"))


def weight_stages(config: model.Config) -> Iterator[Stage]:
    """Every tensor of the model as a checkpoint would hold it, and as it is used after quantisation."""
    raw = model.raw_weights(config)
    used = model.quantised_weights(raw)
    for name in raw:
        yield known(f"weights.{name}", "data", lambda name=name: raw[name])
        yield known(
            f"weights.{name}.quantised", "quantize", lambda name=name: used[name], (f"weights.{name}",)
        )


def tokens(device: torch.device) -> torch.Tensor:
    """int64 tokens (2, 64) below 256."""
    return exact.below(256, (BATCH, LENGTH), "data.tokens").to(device)


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """float32 images (1797, 64) in [0, 1], on a grid of 1/16, and int64 labels (1797,); see DIGITS-LICENSE.txt."""
    rows = gzip.decompress(DIGITS.read_bytes()).split()
    table = torch.tensor([[int(float(cell)) for cell in row.split(b",")] for row in rows])
    return table[:, :PIXELS].float() / 16, table[:, PIXELS]


def _python_stream(seed: int) -> np.ndarray:
    generator = random.Random(seed)
    return np.array([generator.random() for _ in range(STREAM)])


def _seeded(seed: int, device: torch.device, draw: Callable[..., torch.Tensor]) -> torch.Tensor:
    return draw(STREAM, generator=torch.Generator(device).manual_seed(seed), device=device)


def _padded(side: str) -> torch.Tensor:
    """int64 (2, 8, 16): eight sequences of 1 to 16 tokens padded with −1 on one side, above their masks."""
    lengths = 1 + exact.below(16, (8,), "data.lengths")
    content = exact.below(256, (8, 16), "data.sequences")
    positions = torch.arange(16).expand(8, 16)
    mask = positions < lengths.unsqueeze(-1) if side == "right" else positions >= 16 - lengths.unsqueeze(-1)
    return torch.stack((content.masked_fill(~mask, -1), mask.long()))
