"""`kernel.*`, operators that move values or add them up by index: gathers, scatters, sorts.

Where two values reach one place the order of their sum is the kernel's own, which on a GPU is that of its atomics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import bounds
from reprokit.probe.lfq.sensitive import ONE_ULP, REVERSED, exactly, nudged, racing, sensitive
from reprokit.probe.recorder import Stage

ROWS = 37  # that thousands of rows are added up into
Scatter = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def indexing(device: torch.device, full: bool) -> Iterator[Stage]:
    """Gather, scatter and sort; `full` adds the gradients and what is put by index."""
    yield _gather(device)
    yield from _scatters(device)
    if full:
        yield _put(device)
        yield _embedding_gradient(device)
    yield from _sorts(device)


def _gather(device: torch.device) -> Stage:
    table = exact.bell((1000, 64), "kernel.gather.table").to(device)
    index = exact.below(1000, (4099,), "kernel.gather.index").to(device)
    return sensitive(
        "kernel.gather.fp32",
        "gather",
        lambda: F.embedding(index, table),
        lambda y: exactly(y, table.cpu().numpy()[index.cpu().numpy()]),
        (ONE_ULP, lambda: F.embedding(index, nudged(table, int(index[0]) * 64))),
    )


def _scatters(device: torch.device) -> Iterator[Stage]:
    source, rows = _rows(device, 4099)
    zeros = torch.zeros(ROWS, 64, device=device)
    scatters: dict[str, tuple[Scatter, str]] = {
        "scatter_add": (
            lambda r, s: zeros.scatter_add(0, r.unsqueeze(-1).expand(-1, 64), s),
            "torch.Tensor.scatter_add_",
        ),
        "index_add": (lambda r, s: zeros.index_add(0, r, s), "torch.index_add"),
    }
    for name, (function, races) in scatters.items():
        yield _added_up(name, function, rows, source, racing(races, "cuda", device))


def _put(device: torch.device) -> Stage:
    # few enough elements for torch's kernel on a CPU to add them in one thread: from 32,768 on its threads race
    source, rows = _rows(device, 499)
    zeros = torch.zeros(ROWS, 64, device=device)
    return _added_up(
        "index_put",
        lambda r, s: zeros.index_put((r,), s, accumulate=True),
        rows,
        source,
        racing("torch.Tensor.index_put_ with accumulate=True", "cpu", device),
    )


def _embedding_gradient(device: torch.device) -> Stage:
    """Gradient of a table of which each row was used about a hundred times."""
    source, rows = _rows(device, 4099)

    def gradient(index: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(ROWS, 64, device=device, requires_grad=True)
        (found,) = torch.autograd.grad(F.embedding(index, table), table, incoming)
        return found

    return _added_up("embedding_backward", gradient, rows, source, None)


def _rows(device: torch.device, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 64) values, and the row of the result that each of them is added to."""
    source = exact.bell((4099, 64), "kernel.scatter.source")[:count].to(device)
    return source, exact.below(ROWS, (4099,), "kernel.scatter.index")[:count].to(device)


def _added_up(
    name: str, function: Scatter, rows: torch.Tensor, source: torch.Tensor, races: str | None
) -> Stage:
    return sensitive(
        f"kernel.{name}.fp32",
        "scatter",
        lambda: function(rows, source),
        lambda y: bounds.scattered(y, rows, source),
        (REVERSED, lambda: function(rows.flip(0), source.flip(0))),
        races,
    )


def _sorts(device: torch.device) -> Iterator[Stage]:
    ties = exact.below(64, (16, 1000), "kernel.topk").float() / 8  # every value some fifteen times
    ties = ties.to(device)
    yield sensitive(
        "kernel.topk.ties",
        "sort",
        lambda: torch.stack([part.double() for part in torch.topk(ties, 50)]),
        lambda y: exactly(y[0], -np.sort(-ties.cpu().numpy(), axis=1)[:, :50]),
        (ONE_ULP, lambda: torch.stack([part.double() for part in torch.topk(nudged(ties), 50)])),
    )
    values = exact.bell((4099,), "kernel.sort").to(device)
    yield sensitive(
        "kernel.sort.fp32",
        "sort",
        lambda: values.sort().values,
        lambda y: exactly(y, np.sort(values.cpu().numpy())),
        (ONE_ULP, lambda: nudged(values).sort().values),
    )
