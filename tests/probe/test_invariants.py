"""Known answers of `invariant.*` from NumPy and plain integers, and that no partial sum of a product is rounded."""

import hashlib

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from reprokit.probe import exact  # noqa: E402
from reprokit.probe.lfq import invariants  # noqa: E402
from reprokit.probe.lfq.answers import ANSWERS  # noqa: E402
from reprokit.probe.lfq.sensitive import where_supported  # noqa: E402
from reprokit.probe.recorder import Unavailable  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
# the largest integer up to which a type counts without a gap: of float16, 2^11
EXACT = {"float32": 2**24, "float64": 2**53, "bfloat16": 2**8, "float16": 2**11}
EXACT |= {name: int(np.iinfo(name).max) for name in ("int8", "uint8", "int16", "int32", "int64")}


def answer(values, dtype: str) -> str:
    """The canonical hash of integers as `dtype`, written out once more."""
    values = np.asarray(values)
    if dtype == "bfloat16":  # the upper half of a float32
        stored = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    else:
        stored = values.astype(np.dtype(dtype).newbyteorder("<"))
    head = f"{dtype}[{','.join(map(str, values.shape))}]".encode()
    return "sha256:" + hashlib.sha256(head + stored.tobytes()).hexdigest()


def integers(limit: int, shape: tuple[int, ...], stream: str) -> np.ndarray:
    return (exact.integers(shape, stream) % np.uint64(limit)).astype(np.int64)


def operands(dtype: str, m: int, k: int, n: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    least = 0 if dtype == "uint8" else 1 - limit
    a = integers(limit - least, (m, k), f"invariant.gemm.a.{limit}") + least
    b = integers(limit - least, (k, n), f"invariant.gemm.b.{limit}") + least
    if dtype in ("bfloat16", "float16", "int8", "uint8", "int16"):
        b[np.arange(k) % (k // 31 + 1) != 0] = 0
    return a, b


LIMITS = {"float32": 100, "float64": 100, "bfloat16": 3, "float16": 9}
LIMITS |= {"int8": 3, "uint8": 3, "int16": 33, "int32": 2048, "int64": 2**20}
PRODUCTS = [
    name
    for name in ANSWERS
    if name.startswith("invariant.gemm.") and name.split(".")[2] not in ("complex64", "fp8")
]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_that_of_integers_and_no_partial_sum_is_rounded(name):
    *_, dtype, shape = name.split(".")
    m, k, n = map(int, shape.split("x"))
    limit = LIMITS[dtype] if k < 2000 else 45 if dtype == "float32" else 3
    a, b = operands(dtype, m, k, n, limit)
    assert answer(a @ b, dtype) == ANSWERS[name]
    assert (np.abs(a) @ np.abs(b)).max() <= EXACT[dtype]
    assert np.abs(a @ b).max() > 0


def test_there_is_a_product_in_every_type_across_tiles_and_with_a_split_k():
    found = {tuple(name.split(".")[2:]) for name in PRODUCTS}
    assert {dtype for dtype, _ in found} == set(LIMITS)
    for dtype in ("float32", "bfloat16", "float16"):
        assert {"127x129x128", "64x8192x16"} <= {shape for name, shape in found if name == dtype}


def test_the_product_of_complex_numbers_is_that_of_their_parts():
    (a, c), (b, d) = (
        [integers(199, shape, f"invariant.gemm.{name}.{part}") - 99 for part in ("real", "imaginary")]
        for shape, name in (((33, 257), "a"), ((257, 65), "b"))
    )
    expected = np.stack((a @ b - c @ d, a @ d + c @ b), axis=-1)
    assert answer(expected, "float32") == ANSWERS["invariant.gemm.complex64.33x257x65"]
    # three real products for four: (a + c)(b + d) − ab − cd
    assert (np.abs(a + c) @ np.abs(b + d) + np.abs(a) @ np.abs(b) + np.abs(c) @ np.abs(d)).max() < 2**24


def test_int8_products_fill_int32_and_saturate_nowhere():
    a = integers(256, (33, 264), "invariant.int_mm.a") - 128
    b = integers(128, (264, 72), "invariant.int_mm.b") - 64
    assert answer(a @ b, "int32") == ANSWERS["invariant.int_mm.33x264x72"]
    shifted = a + 128  # unsigned, as CPUs multiply; two products are added in 16 bits before VNNI
    pairs = np.abs(shifted[:, 0::2, None] * b[None, 0::2]) + np.abs(shifted[:, 1::2, None] * b[None, 1::2])
    assert pairs.max() < 2**15


def test_fp8_products_stay_within_14_bits():
    a = integers(7, (127, 128), "invariant.gemm.fp8.a") - 3
    b = (integers(7, (128, 128), "invariant.gemm.fp8.b") - 3).T
    assert answer(a @ b, "float32") == ANSWERS["invariant.gemm.fp8.127x128x128"]
    assert (np.abs(a) @ np.abs(b)).max() < 2**11


@pytest.mark.parametrize(("dtype", "limit"), [("int32", 2**15), ("int64", 2**40), ("uint8", 256)])
def test_reductions_of_integers(dtype, limit):
    least = 0 if dtype == "uint8" else -limit // 2
    x = integers(limit, (255, 257), f"invariant.integers.{dtype}") + least
    parts = [f(x) for f in (np.sum, np.min, np.max)]
    rows = [[f(x, axis=axis) for axis in (0, 1)] for f in (np.sum, np.min, np.max)]
    flat = [np.concatenate([*row, [whole]]) for row, whole in zip(rows, parts, strict=True)]
    assert answer(np.concatenate(flat), "int64") == ANSWERS[f"invariant.reduce.{dtype}"]


def test_reductions_of_truth_values():
    x = integers(2, (255, 257), "invariant.integers.bool").astype(bool)
    count = [sum(map(int, row)) for row in x]
    columns = [sum(map(int, column)) for column in x.T]
    total = sum(count)
    every = [*columns, *count, *(x.any(axis=0)), *(x.all(axis=1)), total, total]
    assert answer(np.array(every, np.int64), "int64") == ANSWERS["invariant.reduce.bool"]


@pytest.mark.parametrize(("dtype", "limit"), [("int32", 2**15), ("int64", 2**40)])
def test_cumulative_sums_in_plain_integers(dtype, limit):
    total, sums = 0, []
    for value in (integers(limit, (65537,), f"invariant.integers.{dtype}") - limit // 2).tolist():
        sums.append(total := total + value)
    assert max(map(abs, sums)) <= np.iinfo(dtype).max
    assert answer(np.array(sums), dtype) == ANSWERS[f"invariant.cumsum.{dtype}"]


def test_gathers():
    table = integers(257, (1000, 16), "invariant.table") - 128
    rows = integers(1000, (257,), "invariant.gather.index")
    for dtype in ("int64", "bfloat16"):
        assert answer(table[rows], dtype) == ANSWERS[f"invariant.gather.{dtype}"]
    columns = integers(16, (33,), "invariant.index_select")
    assert answer(table[:, columns], "float32") == ANSWERS["invariant.index_select"]
    places = integers(1000, (257, 16), "invariant.take_along_dim")
    assert answer(table[places, np.arange(16)], "float32") == ANSWERS["invariant.take_along_dim"]


@pytest.mark.parametrize(("dtype", "count"), [("float32", 4099), ("int64", 4099), ("float16", 2048)])
def test_sorts(dtype, count):
    order = exact.permutation(count, "invariant.sort").tolist()
    assert answer(np.arange(count), dtype) == ANSWERS[f"invariant.sort.{dtype}"]
    places = sorted(range(count), key=order.__getitem__)
    assert answer(np.array(places), "int64") == ANSWERS[f"invariant.argsort.{dtype}"]


@pytest.mark.parametrize(
    "message", ["\"addmm_cuda\" not implemented for 'Int'", "Could not run 'aten::_int_mm' with arguments"]
)
def test_what_a_device_lacks_is_unavailable(message):
    with (
        pytest.raises(Unavailable, match="torch has no matrix product of int32 on cuda"),
        where_supported("matrix product of int32", torch.device("cuda")),
    ):
        raise RuntimeError(message)


def test_what_is_broken_is_not_taken_for_lacking():
    with pytest.raises(RuntimeError, match="out of memory"), where_supported("sum", CPU):
        raise RuntimeError("out of memory")


def test_a_stage_of_full_is_not_in_quick():
    quick = {stage.name for stage in invariants.invariant_stages(CPU, full=False)}
    assert quick < {stage.name for stage in invariants.invariant_stages(CPU)}
    assert "invariant.gemm.float32.64x8192x16" not in quick
