"""Loading by worker processes and the split of a data set over ranks, as torch's own classes do them.

Here the number of workers and the world size decide what a training run sees: each worker draws from generators
of its own, and each rank reads a share of its own.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from reprokit.probe import generators
from reprokit.probe.recorder import Control, Stage, Unavailable

ITEMS, BATCH = 12, 3
BASE = 20_240_229  # what the workers' seeds count from: of the data, not the seed of the experiment
PATIENCE = 60.0  # seconds; a loader of this size takes a tenth
# how torch tells that a worker process is gone or silent
LOST = ("DataLoader worker (pid", "DataLoader timed out")
DATASET = 257  # elements that ranks share: no world size above 1 divides it
WORLDS = (1, 2, 4)
GLOBAL_BATCH = 32


class Augmented(Dataset[np.ndarray]):
    """float64 (4,): an element's index and what its augmentation draws from Python, NumPy and torch."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([index, random.random(), np.random.random(), float(torch.rand(()))])


def loader_stage(workers: int) -> Stage:
    """An epoch of a loader with so many workers, 0 being the process itself, float64 (12, 4)."""
    return Stage(
        f"data.loader.workers{workers}",
        "data",
        lambda: epoch(workers, BASE),
        control=Control("other seeds of the workers", lambda: epoch(workers, BASE + ITEMS)),
    )


def epoch(workers: int, base: int) -> np.ndarray:
    """Every element in the order in which the loader gives them, the workers seeded from `base` on."""
    # the process that draws by itself is seeded as the first worker is, and given back as it was
    with generators.kept(), _available():
        seed_worker(0, base)
        return np.concatenate(list(_loader(workers, base)))


def _loader(workers: int, base: int) -> DataLoader[np.ndarray]:
    return DataLoader(
        Augmented(),
        batch_size=BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(BASE),
        num_workers=workers,
        worker_init_fn=partial(seed_worker, base=base),
        collate_fn=np.stack,  # arrays travel through a pipe: no shared memory, which containers are short of
        multiprocessing_context="fork" if workers else None,
        timeout=PATIENCE if workers else 0,
    )


def seed_worker(worker: int, base: int) -> None:
    """Seed all three generators of a worker, each worker by a seed of its own."""
    generators.seed(base + worker)


@contextmanager
def _available() -> Iterator[None]:
    """Name a machine that cannot start or keep workers, and keep back what Python and torch advise about them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fork beside threads, and of more workers than cores
            yield
    except (OSError, ImportError) as error:  # no process, or no semaphore for its queue
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else type(error).__name__
        raise Unavailable(f"no worker process can be started: {reason}") from error
    except RuntimeError as error:
        if not any(told in str(error) for told in LOST):
            raise  # what an element raised in a worker is no lack of the machine
        raise Unavailable("a worker process ended or did not answer in time") from error


def distributed_stages() -> Iterator[Stage]:
    """What each rank reads of one shuffled epoch at several world sizes."""
    for world in WORLDS:
        yield Stage(
            f"data.distributed.world{world}",
            "data",
            lambda world=world: shares(world, 0),
            control=Control("the next epoch", lambda world=world: shares(world, 1)),
        )


def shares(world: int, epoch: int) -> torch.Tensor:
    """int64 (world, ⌈257 / world⌉): the indices that each rank reads, the first ones again at the end."""
    return torch.tensor([list(_sampler(world, rank, epoch)) for rank in range(world)])


def split() -> torch.Tensor:
    """int64 (3, 4), a row for each world size: it, the batch of one rank, its elements and its steps in an epoch."""
    rows = []
    for world in WORLDS:
        sampler = _sampler(world, 0, 0)
        batches = BatchSampler(sampler, GLOBAL_BATCH // world, drop_last=False)
        rows.append([world, GLOBAL_BATCH // world, len(sampler), len(batches)])
    return torch.tensor(rows)


def _sampler(world: int, rank: int, epoch: int) -> DistributedSampler[int]:
    sampler = DistributedSampler(
        range(DATASET),  # only its length is asked for
        num_replicas=world,
        rank=rank,
        shuffle=True,
        seed=BASE,
        drop_last=False,
    )
    sampler.set_epoch(epoch)
    return sampler
