"""The choice of a codebook's nearest entry: |x − c|² as one matrix product, then the first entry among equals."""

from __future__ import annotations

import torch

from reprokit.probe import exact

VECTORS, ENTRIES, WIDTH = 256, 64, 8

Pair = tuple[torch.Tensor, torch.Tensor]


def planted(device: torch.device) -> Pair:
    """float32 vectors (256, 8) and entries (64, 8), small integers; half of the vectors lie between two entries.

    Half of the entries are the other half, moved by 2 along one dimension, all in a shuffled order.
    """
    first = 4 * (exact.below(9, (ENTRIES // 2, WIDTH), "codebook.entries") - 4)
    step = torch.eye(WIDTH, dtype=torch.int64)[torch.arange(ENTRIES // 2) % WIDTH]
    entries = torch.cat((first, first + 2 * step))[exact.permutation(ENTRIES, "codebook.order")]
    between = (first + step).repeat(VECTORS // ENTRIES, 1)  # as far from one entry as from the other
    anywhere = exact.below(33, (VECTORS // 2, WIDTH), "codebook.vectors") - 16
    return torch.cat((between, anywhere)).float().to(device), entries.float().to(device)


def full_mantissas(device: torch.device) -> Pair:
    """float32 vectors (256, 64) and entries (128, 64), bell-shaped."""
    vectors = exact.bell((VECTORS, 64), "codebook.full.vectors")
    return vectors.to(device), exact.bell((128, 64), "codebook.full.entries").to(device)


def nearest(vectors: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """int64 (vectors,): the nearest entry of each; `argmin` promises the first one among equals."""
    a, b = factors(vectors, entries)
    return (a @ b).argmin(-1)


def factors(vectors: torch.Tensor, entries: torch.Tensor, reverse: bool = False) -> Pair:
    """[x, x², 1] and [−2c; 1; c²], whose product is |x − c|² for every pair, the sum in reversed order if asked."""
    a = torch.cat((vectors, vectors.square(), torch.ones_like(vectors)), dim=-1)
    b = torch.cat((-2 * entries, torch.ones_like(entries), entries.square()), dim=-1).T.contiguous()
    return (a.flip(-1), b.flip(0)) if reverse else (a, b)
