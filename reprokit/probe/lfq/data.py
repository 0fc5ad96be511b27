"""`data.*`: what goes into the computation, read, ordered, cut and padded."""

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


def data_stages() -> Iterator[Stage]:
    """Tokens, a shuffled order, both paddings with their masks and the digits file, all known answers."""
    yield known("data.digits", "data", lambda: digits()[0])
    yield known("data.labels", "data", lambda: digits()[1])
    yield known("data.tokens", "data", lambda: tokens(torch.device("cpu")))
    yield known("data.shuffle", "data", lambda: exact.permutation(1797, "data.shuffle"))
    yield known("data.padding_left", "data", lambda: _padded("left"))
    yield known("data.padding_right", "data", lambda: _padded("right"))


def tokens(device: torch.device) -> torch.Tensor:
    """int64 tokens (2, 64) below 256."""
    return exact.below(256, (BATCH, LENGTH), "data.tokens").to(device)


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """float32 images (1797, 64) in [0, 1], on a grid of 1/16, and int64 labels (1797,); see DIGITS-LICENSE.txt."""
    rows = gzip.decompress(DIGITS.read_bytes()).split()
    table = torch.tensor([[int(float(cell)) for cell in row.split(b",")] for row in rows])
    return table[:, :PIXELS].float() / 16, table[:, PIXELS]


def _padded(side: str) -> torch.Tensor:
    """int64 (2, 8, 16): eight sequences of 1 to 16 tokens padded with −1 on one side, above their masks."""
    lengths = 1 + exact.below(16, (8,), "data.lengths")
    content = exact.below(256, (8, 16), "data.sequences")
    positions = torch.arange(16).expand(8, 16)
    mask = positions < lengths.unsqueeze(-1) if side == "right" else positions >= 16 - lengths.unsqueeze(-1)
    return torch.stack((content.masked_fill(~mask, -1), mask.long()))
