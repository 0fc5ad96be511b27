"""Data: each fault that a data path can have moves the stages that are meant to show it, and no others."""

import errno
import math
import os
import random
import tempfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reprokit.probe import generators  # noqa: E402
from reprokit.probe.lfq import corpus, data, loader, scratch  # noqa: E402
from reprokit.probe.recorder import Recorder, Unavailable  # noqa: E402
from tests.probe.planting import honest, measured, moved  # noqa: E402

pytestmark = pytest.mark.torch
LOADERS = ["data.loader.workers0", "data.loader.workers2"]
DataLoader = loader.DataLoader


@pytest.fixture(autouse=True)
def unspoilt():
    """The honest run, before a test plants anything."""
    honest("data")


def test_names_stand_in_canonical_order_and_are_created_in_none():
    names = [name.encode() for name in corpus.NAMES]
    assert names == sorted(names)
    created = [int(index) for index in data.exact.permutation(len(names), "data.files.order")]
    assert created not in (sorted(created), sorted(created, reverse=True))
    assert [name for name, _ in corpus.read()] == names


def test_the_corpus_is_gone_afterwards(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    corpus.read()
    assert list(tmp_path.iterdir()) == []


ORDERS = {
    "as it is listed": lambda paths, folder: list(paths),
    "by path objects, folder by folder": lambda paths, folder: sorted(paths),
    "without regard to case": lambda paths, folder: sorted(paths, key=lambda path: str(path).casefold()),
    "by number": lambda paths, folder: sorted(
        paths, key=lambda path: (not path.stem.isdigit(), path.stem.zfill(9), path)
    ),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_files_in_another_order(monkeypatch, order):
    canonical = corpus.in_order
    listings = []

    def other(paths, folder):
        listings.append(order(paths, folder) == canonical(paths, folder))
        return order(paths, folder)

    monkeypatch.setattr(corpus, "in_order", other)
    found = moved("data")
    if all(listings):
        pytest.skip("this file system lists in the canonical order")
    assert found == ["data.files", "data.files.tokens"]


def test_a_changed_file_moves_its_own_row():
    files = corpus.read()
    changed = [(name, content + b"\n" if name == b"2.txt" else content) for name, content in files]
    rows = (corpus.digests(files) != corpus.digests(changed)).any(dim=1)
    assert rows.nonzero().flatten().tolist() == [corpus.NAMES.index("2.txt")]


def test_without_a_folder_for_temporary_files_the_reason_names_no_path(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(
        Unavailable, match="^no file can be kept in the folder for temporary ones: No such file or dir"
    ):
        corpus.read()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    with pytest.raises(Unavailable) as caught, scratch.folder():
        pass
    assert str(tmp_path) not in str(caught.value)


def test_augmentation_with_unseeded_numpy(monkeypatch):
    monkeypatch.setattr(
        data, "_generators", lambda: (np.random.RandomState(), random.Random(data.AUGMENTATION))
    )
    assert moved("data") == ["data.augmentation"]
    monkeypatch.setattr(data, "_generators", lambda: (np.random, random.Random(data.AUGMENTATION)))
    assert moved("data") == ["data.augmentation", "rng.after.data"]


def test_augmentation_with_unseeded_numpy_is_unstable(monkeypatch):
    monkeypatch.setattr(
        data, "_generators", lambda: (np.random.RandomState(), random.Random(data.AUGMENTATION))
    )
    recorder = Recorder()
    recorder.run(data.data_stages(full=False))
    recorder.repeat(data.data_stages(full=False))
    assert [stage["name"] for stage in recorder.trace() if stage["state"] == "unstable"] == [
        "data.augmentation"
    ]


def test_left_for_right_padding(monkeypatch):
    padded = data._padded
    monkeypatch.setattr(data, "_padded", lambda side: padded("left"))
    name = "data.padding_right"
    assert moved("data") == [name, f"{name}.positions", f"{name}.attention_mask"]


def test_positions_and_masks_token_by_token():
    for side in ("left", "right"):
        real = data._padded(side)[1].tolist()
        positions, seen = data._positions(data._padded(side)[1]), data._attended(data._padded(side)[1])
        for row, mask in enumerate(real):
            for i in range(16):
                if mask[i]:
                    assert positions[row, i] == sum(mask[:i])
                assert seen[row, i].tolist() == [(j <= i and mask[j] == 1) or j == i for j in range(16)]


def test_the_number_of_workers_moves_the_data():
    alone, two = (loader.epoch(workers, loader.BASE) for workers in (0, 2))
    assert (alone[:, 0] == two[:, 0]).all(), "the order of the elements is the sampler's"
    assert sorted(alone[:, 0]) == list(range(loader.ITEMS))
    assert (alone[: loader.BATCH] == two[: loader.BATCH]).all(), (
        "the first worker is seeded as the process is"
    )
    assert (alone[loader.BATCH :, 1:] != two[loader.BATCH :, 1:]).all()
    assert len(np.unique(two[:, 1:])) == two[:, 1:].size, "two workers draw the same numbers"


def test_a_missing_worker_init_fn_moves_the_workers_alone(monkeypatch):
    def without(*arguments, worker_init_fn, **options):
        return DataLoader(*arguments, **options)

    monkeypatch.setattr(loader, "DataLoader", without)
    assert moved("data") == ["data.loader.workers2"]
    # torch seeds a worker by itself, from the loader's generator: another data path, but a steady one
    assert measured("data") == measured("data")


def test_a_worker_init_fn_that_forgets_numpy(monkeypatch):
    def forgetful(worker: int, base: int) -> None:
        random.seed(base + worker)
        torch.manual_seed(base + worker)

    monkeypatch.setattr(loader, "seed_worker", forgetful)
    assert moved("data") == LOADERS


def test_a_loader_without_a_generator_draws_from_the_global_one(monkeypatch):
    def without(*arguments, generator, **options):
        return DataLoader(*arguments, **options)

    monkeypatch.setattr(loader, "DataLoader", without)
    assert moved("data") == LOADERS  # what it drew is given back with the rest


def test_a_loader_gives_the_global_generators_back():
    generators.seed(5)
    before = generators.states(torch.device("cpu"))
    for workers in (0, 2):
        loader.epoch(workers, loader.BASE)
    assert (generators.states(torch.device("cpu")) == before).all()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
            "no worker process can be started: Resource temp",
        ),
        (ImportError("sem_open"), "no worker process can be started: ImportError"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."),
            "a worker process ended or did not answer in time",
        ),
        (RuntimeError("DataLoader timed out after 60 s"), "a worker process ended or did not answer in time"),
    ],
)
def test_a_machine_without_workers_says_so(monkeypatch, error, reason):
    def failing(*arguments, **options):
        raise error

    monkeypatch.setattr(loader, "DataLoader", failing)
    with pytest.raises(Unavailable, match=f"^{reason}"):
        loader.epoch(2, loader.BASE)


def test_an_element_that_fails_is_no_lack_of_the_machine(monkeypatch):
    def failing(self, index):
        raise RuntimeError("a fault of the data")

    monkeypatch.setattr(loader.Augmented, "__getitem__", failing)
    with pytest.raises(RuntimeError, match="a fault of the data"):
        loader.epoch(2, loader.BASE)


@pytest.mark.parametrize("world", loader.WORLDS)
def test_ranks_share_every_element(world):
    shares = loader.shares(world, 0)
    assert shares.shape == (world, -(-loader.DATASET // world))
    whole = loader.shares(1, 0).flatten()
    padded = torch.cat((whole, whole[: shares.numel() - loader.DATASET]))
    assert (shares == torch.stack([padded[rank::world] for rank in range(world)])).all()


def test_a_sampler_that_forgets_its_epoch(monkeypatch):
    monkeypatch.setattr(loader.DistributedSampler, "set_epoch", lambda self, epoch: None)
    recorder = Recorder()
    recorder.run(loader.distributed_stages())
    assert {stage["state"] for stage in recorder.trace()} == {"blind"}


def test_the_split_keeps_the_global_batch():
    for world, batch, elements, steps in loader.split().tolist():
        assert world * batch == 32
        assert elements == math.ceil(257 / world)
        assert steps == math.ceil(elements / batch)
