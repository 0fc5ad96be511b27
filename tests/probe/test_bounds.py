"""A-priori bounds: right kernels keep them with room to spare, wrong formulas break them without any baseline."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from reprokit.probe import exact  # noqa: E402
from reprokit.probe.lfq import bounds, kernels, sensitive  # noqa: E402
from reprokit.probe.recorder import Unavailable  # noqa: E402

pytestmark = pytest.mark.torch
X = exact.bell((40, 300), "bounds.x")


# Sums so long that the bound of any order allows more than half of a result; what breaks them stands in WRONG.
LONG = ("kernel.sum.", "kernel.cumsum.", "kernel.numpy_sum.")


def runs(stage) -> bool:
    try:
        stage.compute()
    except Unavailable as reason:
        assert str(reason) == "needs a GPU", stage.name
        return False
    return True


@pytest.fixture(scope="module")
def stages():
    """Those that a CPU can run."""
    found = kernels.kernel_stages(torch.device("cpu"), full=True)
    return {stage.name: stage for stage in found if runs(stage)}


def test_every_kernel_has_a_bound_and_a_control_and_keeps_the_bound(stages):
    assert len(stages) > 100
    assert all(stage.bound and stage.control for stage in stages.values())
    ratios = {name: stage.bound(stage.compute()) for name, stage in stages.items()}
    assert {name: ratio for name, ratio in ratios.items() if not 0 <= ratio <= 0.5} == {}


def test_one_flipped_bit_breaks_the_bound_of_every_kernel(stages):
    """The highest bit of the mantissa, in the largest number of the result."""
    whole = {}
    for name, stage in stages.items():
        y = torch.as_tensor(stage.compute()).clone()
        bits = {4: torch.int32, 2: torch.int16, 8: torch.int64}[y.element_size()]
        mantissa = round(-math.log2(torch.finfo(y.dtype).eps))
        place = int((y[0] if name == "kernel.topk.ties" else y).double().abs().argmax())
        y.view(-1).view(bits)[place] ^= 1 << (mantissa - 1)
        result = y.numpy() if isinstance(stage.compute(), np.ndarray) else y
        if not (ratio := stage.bound(result)) > 1:
            whole[name] = ratio
    assert {name for name in whole if not name.startswith(LONG)} == set()


def test_a_nan_breaks_the_bound_of_every_kernel(stages):
    for name, stage in stages.items():
        y = stage.compute().copy() if name.startswith("kernel.numpy") else stage.compute().clone()
        y.reshape(-1)[0] = math.nan
        assert stage.bound(y) == math.inf, name


def test_every_operator_class_of_a_single_process_has_a_kernel(stages):
    classes = {stage.operator for stage in stages.values()}
    assert classes == {
        "gemm",
        "conv",
        "reduction",
        "softmax",
        "norm",
        "attention",
        "gather",
        "scatter",
        "sort",
        "elementwise",
    }


def naive_softmax(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


def flipped(y, bit: int):
    y = y.clone()
    y.view(-1).view(torch.int32)[7] ^= 1 << bit
    return y


def q_k_v():
    return [exact.bell((1, 2, 50, 16), f"bounds.{part}") for part in "qkv"]


BIAS = exact.bell((40,), "bounds.bias")
IMAGE, TAPS = exact.bell((2, 5, 12, 12), "bounds.image"), exact.bell((6, 5, 3, 3), "bounds.taps")
SERIES, FILTER = exact.bell((2, 5, 40), "bounds.series"), exact.bell((6, 5, 5), "bounds.filter")
ROWS = torch.arange(40) % 4


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def q_and_two_of_k_and_v():
    return [
        exact.bell((1, heads, 50, 16), f"bounds.grouped.{part}")
        for part, heads in zip("qkv", (8, 2, 2), strict=True)
    ]


def added_in_bfloat16():
    total = torch.zeros(4, 300, dtype=torch.bfloat16)
    for row, values in zip(ROWS.tolist(), X, strict=True):
        total[row] += values.bfloat16()
    return total.float()


def e4m3(shape, stream):
    return exact.bell(shape, stream).to(torch.float8_e4m3fn).float()


WRONG = {
    "a product without its bias": lambda: bounds.product(X @ X.T, X, X.T, bias=BIAS),
    "a bias added twice": lambda: bounds.product(X @ X.T + 2 * BIAS, X, X.T, bias=BIAS),
    "a product that lost a term": lambda: bounds.product(X[:, 1:] @ X.T[1:], X, X.T),
    "a batch in another order": lambda: bounds.product(
        torch.bmm(X.view(4, 10, 300), X.view(4, 10, 300).mT).roll(1, 0),
        X.view(4, 10, 300),
        X.view(4, 10, 300).mT,
    ),
    "a product of FP8 with a scale of two": lambda: bounds.product(
        2 * e4m3((40, 256), "a") @ e4m3((256, 40), "b"),
        e4m3((40, 256), "a"),
        e4m3((256, 40), "b"),
        accumulator=bounds.FP8_SUM,
    ),
    "partial sums in bfloat16 where none are allowed": lambda: bounds.product(
        sum((X[:, part::4] @ X.T[part::4]).bfloat16() for part in range(4)).bfloat16(), X, X.T
    ),
    "a convolution without its bias": lambda: bounds.convolution(
        F.conv2d(IMAGE, TAPS, None, 2, 1), IMAGE, TAPS, 0.0, BIAS[:6], 2, 1
    ),
    "a convolution that pads with the border": lambda: bounds.convolution(
        F.conv2d(F.pad(IMAGE, (1, 1, 1, 1), "replicate"), TAPS, BIAS[:6], 2), IMAGE, TAPS, 0.0, BIAS[:6], 2, 1
    ),
    "a convolution in one dimension with its taps reversed": lambda: bounds.convolution(
        F.conv1d(SERIES, FILTER.flip(-1), padding=2), SERIES, FILTER, padding=2
    ),
    "a gradient of one image alone": lambda: bounds.weight_gradient(
        torch.nn.grad.conv2d_weight(IMAGE[:1], TAPS.shape, IMAGE[:1, :5, 2:, 2:].repeat(1, 2, 1, 1)[:, :6]),
        IMAGE,
        IMAGE[:, :5, 2:, 2:].repeat(1, 2, 1, 1)[:, :6],
    ),
    "grouped attention with its heads dealt out in turn": lambda: bounds.attention(
        F.scaled_dot_product_attention(
            *(part.repeat(1, 8 // part.shape[1], 1, 1) for part in q_and_two_of_k_and_v()), is_causal=True
        ),
        *q_and_two_of_k_and_v(),
    ),
    "rows added up in bfloat16": lambda: bounds.scattered(added_in_bfloat16(), ROWS, X),
    "a row that was added to another": lambda: bounds.scattered(
        torch.zeros(4, 300).index_put((ROWS.roll(1),), X, accumulate=True), ROWS, X
    ),
    "a root-mean-square norm with the wrong length": lambda: bounds.norm(
        F.rms_norm(X, (300,)) * math.sqrt(299 / 300), X, centred=False
    ),
    "a log-softmax that lost a term": lambda: bounds.log_softmax(X - X[:, 1:].logsumexp(-1, keepdim=True), X),
    "softmax without the maximum, beyond 88": lambda: bounds.softmax(naive_softmax(X * 64), X * 64),
    "tanh for the error function in GELU": lambda: bounds.elementwise(
        F.gelu(X, approximate="tanh"), X.double() * torch.special.ndtr(X.double()), 4 * X.double()
    ),
    "a flipped bit in a product": lambda: bounds.product(flipped(X @ X.T, 16), X, X.T),
    "a product in bfloat16 passed off as float32": lambda: bounds.product(
        (X.bfloat16() @ X.T.bfloat16()).float(), X, X.T
    ),
    "a convolution with another kernel order": lambda: bounds.convolution(
        F.conv2d(X[None, None], X[None, None, :3, :3].flip(-1)), X[None, None], X[None, None, :3, :3]
    ),
    "attention without its mask": lambda: bounds.attention(
        F.scaled_dot_product_attention(*q_k_v()), *q_k_v()
    ),
    "attention without its scale": lambda: bounds.attention(
        F.scaled_dot_product_attention(*q_k_v(), is_causal=True, scale=1.0), *q_k_v()
    ),
    "layer norm without its mean": lambda: bounds.norm(F.rms_norm(X, (300,)), X, centred=True),
    "a sum that lost a term": lambda: bounds.total(X[:, 1:].sum(1), X, 1),
    "a cumulative sum that is shifted": lambda: bounds.running_total(
        X.flatten().cumsum(0).roll(1), X.flatten()
    ),
    "a scatter that overwrites": lambda: bounds.scattered(
        torch.zeros(4, 300).index_copy(0, torch.arange(40) % 4, X), torch.arange(40) % 4, X
    ),
    "a NaN": lambda: bounds.product(torch.full((40, 40), math.nan), X, X.T),
}


@pytest.mark.parametrize("ratio", WRONG.values(), ids=WRONG)
def test_a_wrong_formula_breaks_its_bound(ratio):
    assert ratio() > 1


def in_tf32(x):
    """float32 with the 13 bits cut off that TF32 does not keep, rounded to nearest."""
    bits = x.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_tf32_is_right_where_it_is_allowed_and_wrong_where_it_is_not():
    a, b = X, exact.bell((300, 64), "bounds.b")
    x, w = X.reshape(1, 1000, 3, 4), exact.bell((64, 1000, 1, 1), "bounds.w")
    q, k, v = q_k_v()
    results = {
        "product": lambda inputs: bounds.product(in_tf32(a) @ in_tf32(b), a, b, inputs),
        "convolution": lambda inputs: bounds.convolution(F.conv2d(in_tf32(x), in_tf32(w)), x, w, inputs),
        "attention": lambda inputs: bounds.attention(
            F.scaled_dot_product_attention(in_tf32(q), in_tf32(k), in_tf32(v), is_causal=True),
            q,
            k,
            v,
            inputs,
        ),
    }
    for name, result in results.items():
        assert result(bounds.TF32) <= 1, name
    assert results["attention"](0.0) > 1
    assert sensitive.inputs_roundoff("matmul", X) == 0  # never on a CPU


def test_what_a_bound_allows_by_name_is_right_there():
    a, b = e4m3((40, 256), "a"), e4m3((256, 40), "b")
    assert bounds.product(a @ b, a, b, accumulator=bounds.FP8_SUM) <= 1
    partly = sum((X[:, part::4] @ X.T[part::4]).bfloat16() for part in range(4)).bfloat16()
    assert bounds.product(partly, X, X.T, partials=bounds.roundoff(torch.bfloat16)) <= 1
    assert bounds.attention(grouped(*q_and_two_of_k_and_v()), *q_and_two_of_k_and_v()) <= 1
    assert sensitive.partials_roundoff(X.bfloat16()) == 0  # never on a CPU


def test_a_naive_softmax_is_as_good_as_any_where_logits_are_small():
    assert bounds.softmax(naive_softmax(X), X) <= 1


@pytest.mark.parametrize("stage", ["kernel.gather.fp32", "kernel.topk.ties", "kernel.sort.fp32"])
def test_an_exact_operator_allows_no_error(stages, stage):
    result = stages[stage].compute()
    assert stages[stage].bound(result) == 0
    assert stages[stage].bound(result.flip(0) if result.dim() == 1 else result.roll(1, dims=-1)) > 1
