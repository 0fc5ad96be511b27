"""Known answers: constants, and each kind of them held to an independent computation."""

import gzip
import hashlib
import itertools
import math
import random
from contextlib import closing

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from reprokit.probe import exact  # noqa: E402
from reprokit.probe.hashing import sha256  # noqa: E402
from reprokit.probe.lfq import corpus, data, model, parts  # noqa: E402
from reprokit.probe.lfq.answers import ANSWERS  # noqa: E402
from reprokit.probe.lfq.collective import Ranks  # noqa: E402
from reprokit.probe.lfq.formats import E4M3, E5M2  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def stages():
    device = torch.device("cpu")
    with closing(Ranks(device, 0, "default", turns=(1,))) as ranks:
        found = [stage for part in parts.parts(device, "full", 0, ranks).values() for stage in part()]
        yield {stage.name: stage for stage in found}


def hashed(array, dtype: str) -> str:
    """The canonical hash written out once more: dtype, shape, little-endian bytes."""
    array = np.ascontiguousarray(array, dtype)
    head = f"{array.dtype.name}[{','.join(map(str, array.shape))}]".encode()
    return "sha256:" + hashlib.sha256(head + array.tobytes()).hexdigest()


def test_every_invariant_stage_has_an_answer_and_gives_it(stages):
    invariant = {name: stage for name, stage in stages.items() if stage.invariant}
    assert set(invariant) == set(ANSWERS)
    assert {name: sha256(stage.compute()) for name, stage in invariant.items()} == ANSWERS
    assert {name.split(".")[0] for name in invariant} == {
        "invariant",
        "data",
        "weights",
        "quantize",
        "collective",
    }


def test_an_answer_does_not_depend_on_the_seed(stages):
    other = [stage for part in parts.parts(torch.device("cpu"), "quick", 7).values() for stage in part()]
    for stage in other:
        if stage.name.startswith(("data.", "weights.", "invariant.")):
            # torch promises no stream of its own, so that what its samplers give is no constant
            assert stage.invariant != stage.name.startswith("data.distributed.world"), stage.name
            assert stage.answer == ANSWERS.get(stage.name)


def test_tokens_and_weights_from_plain_integers():
    tokens = exact.integers((2, 64), "data.tokens") % 256
    assert ANSWERS["data.tokens"] == hashed(tokens, "<i8")
    words = exact.integers((256, 128, 2), "weights.head").astype(object)
    steps = ((words & (2**22 - 1)) + (words >> 32 & (2**22 - 1))).sum(-1) - 2**23
    assert ANSWERS["weights.head"] == hashed((steps / 2**21 / 16).astype(np.float64), "<f4")


def test_digits_are_the_file_that_ships():
    rows = gzip.decompress(data.DIGITS.read_bytes()).decode().split()
    table = np.array([[float(cell) for cell in row.split(",")] for row in rows])
    assert table.shape == (1797, 65)
    assert ANSWERS["data.digits"] == hashed(table[:, :64] / 16, "<f4")
    assert ANSWERS["data.labels"] == hashed(table[:, 64], "<i8")
    assert np.bincount(table[:, 64].astype(int)).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]


def test_integer_products_from_numpy_integers():
    for m, k, n in ((1, 1000, 64), (33, 257, 65), (256, 1024, 128)):
        a = exact.below(199, (m, k), "invariant.gemm.a.100").numpy() - 99
        b = exact.below(199, (k, n), "invariant.gemm.b.100").numpy() - 99
        assert ANSWERS[f"invariant.gemm.float32.{m}x{k}x{n}"] == hashed(a @ b, "<f4")
        assert ANSWERS[f"invariant.gemm.float64.{m}x{k}x{n}"] == hashed(a @ b, "<f8")
        assert np.abs(a).astype(object).dot(np.abs(b)).max() < 2**24, "a partial sum might be rounded"


def test_decode_answers_are_the_tables_of_the_formats():
    for form in (E4M3, E5M2):
        assert ANSWERS[f"invariant.decode.{form.name}"] == hashed(form.values, "<f4")
    assert [v for v in E4M3.values if math.isnan(v)] != []


def test_padding_sides_are_mirror_images():
    left, right = data._padded("left"), data._padded("right")
    lengths = left[1].sum(-1)
    assert lengths.tolist() == right[1].sum(-1).tolist()
    assert (left[1].flip(-1) == right[1]).all()
    assert (left[0] != right[0]).any()


def test_files_and_their_tokens_from_plain_bytes():
    contents = {}
    for name in corpus.NAMES:
        size = 0 if "empty" in name else 1 + int(exact.integers((1,), f"data.files.size.{name}")[0] % 64)
        contents[name.encode()] = bytes(
            int(word) % 256 for word in exact.integers((size,), f"data.files.{name}")
        )
    digests = [hashlib.sha256(name + b"\0" + contents[name]).digest() for name in sorted(contents)]
    assert ANSWERS["data.files"] == hashed([list(digest) for digest in digests], "u1")
    tokens = [byte for name in sorted(contents) for byte in contents[name]]
    assert ANSWERS["data.files.tokens"] == hashed(tokens, "<i8")


def test_augmentation_pixel_by_pixel():
    numpy, python = np.random.RandomState(1797), random.Random(1797)
    images = data.digits()[0][:8].reshape(8, 8, 8).tolist()
    results = np.zeros((8, 8, 8))
    for image, result in zip(images, results, strict=True):
        top, left = (int(3 * u) - 1 for u in numpy.random_sample(2))
        mirrored = python.random() < 0.5
        for y, x in itertools.product(range(8), range(8)):
            row, column = y + top, (7 - x if mirrored else x) + left
            pixel = image[row][column] if 0 <= row < 8 and 0 <= column < 8 else 0.0
            result[y, x] = min(max(pixel + (numpy.random_sample() - 0.5) / 16, 0.0), 1.0)
    assert ANSWERS["data.augmentation"] == hashed(results, "<f4")


def test_weights_are_used_through_their_codes():
    raw = model.raw_weights(model.Config())
    used = model.quantised_weights(raw)
    assert {len(torch.unique(used[n].abs() / used[n].abs().max())) > 8 for n in used} == {True}
    errors = {name: ((used[name] - raw[name]).norm() / raw[name].norm()).item() for name in raw}
    assert all(0.01 < errors[name] < 0.04 for name in raw if "mlp" not in name)  # three bits of mantissa
    assert all(0.05 < errors[name] < 0.2 for name in raw if "mlp" in name)  # one
