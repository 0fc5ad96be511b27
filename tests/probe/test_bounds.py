"""A-priori bounds: right kernels keep them with room to spare, wrong formulas break them without any baseline."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from reprokit.probe import exact  # noqa: E402
from reprokit.probe.lfq import bounds, kernels  # noqa: E402

pytestmark = pytest.mark.torch
X = exact.bell((40, 300), "bounds.x")


@pytest.fixture(scope="module")
def stages():
    return {stage.name: stage for stage in kernels.kernel_stages(torch.device("cpu"), full=True)}


def test_every_kernel_has_a_bound_and_a_control_and_keeps_the_bound(stages):
    assert all(stage.bound and stage.control for stage in stages.values())
    ratios = {name: stage.bound(stage.compute()) for name, stage in stages.items()}
    assert {name: ratio for name, ratio in ratios.items() if not 0 <= ratio <= 0.5} == {}


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


WRONG = {
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
    assert kernels.inputs_roundoff("matmul", X) == 0  # never on a CPU


def test_a_naive_softmax_is_as_good_as_any_where_logits_are_small():
    assert bounds.softmax(naive_softmax(X), X) <= 1


@pytest.mark.parametrize("stage", ["kernel.gather.fp32", "kernel.topk.ties", "kernel.sort.fp32"])
def test_an_exact_operator_allows_no_error(stages, stage):
    result = stages[stage].compute()
    assert stages[stage].bound(result) == 0
    assert stages[stage].bound(result.flip(0) if result.dim() == 1 else result.roll(1, dims=-1)) > 1
