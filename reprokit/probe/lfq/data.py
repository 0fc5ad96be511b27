"""`data.*`: what goes into the computation, read, ordered, augmented, cut, padded, loaded and shared out."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch

from reprokit.probe import exact
from reprokit.probe.lfq import corpus, loader
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Stage

BATCH, LENGTH = 2, 64
PIXELS, SIDE = 64, 8
IMAGES = 8  # augmented ones
AUGMENTATION = 1797  # seed of the augmentation: of the data, not that of the experiment
NOISE = 2.0**-4
DIGITS = Path(__file__).with_name("digits.csv.gz")


def data_stages(full: bool) -> Iterator[Stage]:
    """Known answers throughout, but for what torch draws by itself: the shares of ranks and a loader's workers."""
    yield known("data.digits", "data", lambda: digits()[0])
    yield known("data.labels", "data", lambda: digits()[1])
    files = cache(corpus.read)  # once for each repeat
    yield known("data.files", "data", lambda: corpus.digests(files()))
    yield known("data.files.tokens", "data", lambda: corpus.tokens(files()), ("data.files",))
    yield known("data.tokens", "data", lambda: tokens(torch.device("cpu")))
    yield known("data.shuffle", "data", lambda: exact.permutation(1797, "data.shuffle"))
    yield known("data.augmentation", "data", augmented, ("data.digits",))
    for side in ("left", "right"):
        name = f"data.padding_{side}"
        yield known(name, "data", lambda side=side: _padded(side))
        yield known(f"{name}.positions", "data", lambda side=side: _positions(_padded(side)[1]), (name,))
        yield known(f"{name}.attention_mask", "data", lambda side=side: _attended(_padded(side)[1]), (name,))
    yield known("data.distributed.split", "data", loader.split)
    yield from loader.distributed_stages()
    if full:
        yield loader.loader_stage(0)
        yield loader.loader_stage(2)


def tokens(device: torch.device) -> torch.Tensor:
    """int64 tokens (2, 64) below 256."""
    return exact.below(256, (BATCH, LENGTH), "data.tokens").to(device)


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """float32 images (1797, 64) in [0, 1], on a grid of 1/16, and int64 labels (1797,); see DIGITS-LICENSE.txt."""
    with gzip.open(DIGITS) as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",").astype(np.int64))
    return table[:, :PIXELS].float() / 16, table[:, PIXELS]


def augmented() -> torch.Tensor:
    """float32 (8, 8, 8): images cropped, mirrored and with noise, from generators of the augmentation's own.

    Both streams are frozen by promise: `RandomState` by NEP 19, `Random.random` by Python's documentation. Uniform
    numbers alone are drawn, since normal ones go through the logarithm of the C library.
    """
    numpy, python = _generators()
    images = digits()[0][:IMAGES].reshape(IMAGES, SIDE, SIDE).double().numpy()
    results = []
    for image in images:
        top, left = (3 * numpy.random_sample(2)).astype(int)
        result = np.pad(image, 1)[top : top + SIDE, left : left + SIDE]
        if python.random() < 0.5:
            result = result[:, ::-1]
        noise = (numpy.random_sample((SIDE, SIDE)) - 0.5) * NOISE
        results.append(np.clip(result + noise, 0, 1))
    return torch.from_numpy(np.stack(results)).float()


def _generators() -> tuple[np.random.RandomState, random.Random]:
    return np.random.RandomState(AUGMENTATION), random.Random(AUGMENTATION)


def _padded(side: str) -> torch.Tensor:
    """int64 (2, 8, 16): eight sequences of 1 to 16 tokens padded with −1 on one side, above their masks."""
    lengths = 1 + exact.below(16, (8,), "data.lengths")
    content = exact.below(256, (8, 16), "data.sequences")
    positions = torch.arange(16).expand(8, 16)
    mask = positions < lengths.unsqueeze(-1) if side == "right" else positions >= 16 - lengths.unsqueeze(-1)
    return torch.stack((content.masked_fill(~mask, -1), mask.long()))


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """int64 (B, T): the position of each token among the real ones of a mask (B, T); that of leading padding is 0."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _attended(mask: torch.Tensor) -> torch.Tensor:
    """bool (B, T, T): each token sees the real ones up to itself, and padding itself."""
    length = mask.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return mask.bool().unsqueeze(-2) & causal | torch.eye(length, dtype=torch.bool)
