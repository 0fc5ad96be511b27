"""Wrong formulas planted in the probe: each holds at no level, and the first stage named is the one that is wrong."""

from __future__ import annotations

import itertools
import json

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from reprokit.compare import compare  # noqa: E402
from reprokit.model import canonical, reading  # noqa: E402
from reprokit.model.fingerprint import Fingerprint  # noqa: E402
from reprokit.probe.lfq import indexing, kernels, metrics, model, quantiser  # noqa: E402
from reprokit.probe.lfq.parts import parts  # noqa: E402
from reprokit.probe.recorder import Recorder  # noqa: E402

pytestmark = pytest.mark.torch
softmax, weights, dequantise = torch.softmax, model.quantised_weights, quantiser.dequantise
encode, gelu, mm = quantiser.encode, F.gelu, torch.Tensor.__matmul__


def naive_softmax(x, dim):
    return x.exp() / x.exp().sum(dim, keepdim=True)


def transposed(raw):
    used = weights(raw)
    return {**used, "layer0.attention_out": used["layer0.attention_out"].T.contiguous()}


def flipped_bit(x, w, reverse):
    y = F.linear(x, w)
    y.view(-1).view(torch.int32)[5] ^= 1 << 20
    return y


# name → what is replaced, by what, and the first stage that must be named
PLANTS = {
    # its jitter shows in the model first; what breaks is asserted below
    "softmax without the maximum": ((torch, "softmax", naive_softmax), "layer0.attention.fp32"),
    "a transposed weight": (
        (model, "quantised_weights", transposed),
        "weights.layer0.attention_out.quantised",
    ),
    "a scale off by one power of two": (
        (quantiser, "dequantise", lambda codes, scales, form: dequantise(codes, scales + 1, form)),
        "invariant.specials.e4m3",
    ),
    "a dropped causal mask": (
        (model, "causal_mask", lambda length, device: torch.ones(length, length, dtype=torch.bool)),
        "layer0.attention.fp32",
    ),
    "swapped nibbles": (
        (
            quantiser,
            "unpack_nibbles",
            lambda packed: torch.stack((packed >> 4, packed & 0xF), dim=-1).flatten(-2),
        ),
        "invariant.nibbles",
    ),
    "tanh for the error function": (
        (F, "gelu", lambda x: gelu(x, approximate="tanh")),
        "layer0.gelu.fp32",
    ),
    "rounding half up": (
        (torch.Tensor, "round", lambda x: (x + 0.5).floor()),
        "invariant.encode.e4m3",
    ),
    "a flipped bit in a product": ((model, "_matmul", flipped_bit), "layer0.qkv.fp32"),
    "attention without its scale": (
        (model.math, "sqrt", lambda x: 1.0),
        "layer0.attention.fp32",
    ),
    "a norm without its epsilon or mean": (
        (kernels, "rms_norm", lambda x: x / x.abs().mean(-1, keepdim=True)),
        "kernel.rms_norm.fp32",
    ),
}


@pytest.fixture(scope="module")
def honest(measure) -> Fingerprint:
    return reading.read(measure("quick"), Fingerprint)


def planted(base: Fingerprint, repeats: int = 0) -> Fingerprint:
    """`base` with the stages and metrics that this process gives now."""
    import msgspec

    recorder = Recorder()
    for part in parts(torch.device("cpu"), "quick", 0).values():
        recorder.run(part())
        for _ in range(repeats):
            recorder.repeat(part())
    stages = recorder.trace()
    evaluation = recorder.records["metrics.digits.evaluation"]
    document = msgspec.to_builtins(base) | {
        "stages": stages,
        "logit_hash": recorder.records["logits"]["sha256"],
        "metrics": metrics.summarised(
            torch.tensor(evaluation["sketch"]["samples"], dtype=torch.float64).reshape(evaluation["shape"])
        ),
    }
    return reading.decode(json.loads(canonical.encode(canonical.sealed(document))), Fingerprint, "planted")


@pytest.mark.parametrize(("plant", "first"), PLANTS.values(), ids=PLANTS)
def test_a_wrong_formula_holds_at_no_level(honest, monkeypatch, plant, first):
    with monkeypatch.context() as patch:
        patch.setattr(*plant)
        head = planted(honest)
    comparison = compare(honest, head)
    assert comparison.verdict.level == "none"
    assert comparison.verdict.state == "drifted"
    assert comparison.diagnosis.first_stage == first
    assert not comparison.levels[-1].holds


def test_a_naive_softmax_is_caught_where_logits_are_large(honest, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "softmax", naive_softmax)
        head = planted(honest)
    comparison = compare(honest, head)
    errors = {stage.name: stage.error for stage in comparison.stages}
    assert errors["kernel.softmax.fp32"].within
    assert not errors["kernel.softmax_large.fp32"].within
    assert "kernel.softmax_large.fp32" in " ".join(comparison.levels[-1].reasons)


def test_without_a_plant_all_is_equal(honest):
    comparison = compare(honest, planted(honest))
    assert comparison.verdict.level == "bit"
    assert comparison.head.digest == comparison.base.digest


@pytest.mark.parametrize(
    ("documented", "kind"), [(True, "nondeterministic-kernel"), (False, "logic")], ids=["documented", "not"]
)
def test_a_scatter_that_adds_as_threads_arrive_is_unstable(honest, monkeypatch, documented, kind):
    scatter_add, orders = torch.Tensor.scatter_add, itertools.count()

    def racing(self, dim, index, source):
        torch_order = torch.arange(len(source)).roll(997 * next(orders))
        return scatter_add(self, dim, index[torch_order], source[torch_order])

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "scatter_add", racing)
        if documented:  # as on CUDA
            patch.setattr(indexing, "racing", lambda operator, kind, device: operator)
        head = planted(honest, repeats=2)
    unstable = [stage for stage in head.stages if stage.state == "unstable"]
    assert [stage.name for stage in unstable] == ["kernel.scatter_add.fp32"]
    assert unstable[0].reason == "3 different results in 3 runs, first within one process"
    found = compare(honest, head)
    assert (found.diagnosis.class_, found.diagnosis.first_stage) == (kind, "kernel.scatter_add.fp32")
    assert ("torch documents torch.Tensor.scatter_add_" in found.diagnosis.reason) == documented
    assert (found.verdict.state, found.verdict.level) == ("drifted", "conclusion")
    assert found.unapprovable is not None and "unstable" in found.unapprovable


def test_a_control_that_changes_nothing_makes_a_stage_blind_and_fails_nothing(honest, monkeypatch):
    with monkeypatch.context() as patch:
        # summed in float64, it rounds to the same float32 in whatever order
        patch.setattr(kernels, "softmax", lambda x: softmax(x.double(), -1).to(x.dtype))
        before = planted(honest)
    blind = {stage.name for stage in before.stages if stage.state == "blind" and "softmax" in stage.name}
    assert blind == {"kernel.softmax.fp32", "kernel.softmax_large.fp32", "kernel.softmax.bf16"}
    stage = next(stage for stage in before.stages if stage.name == "kernel.softmax.fp32")
    assert stage.reason == "did not move under its control: the reduction in reversed order"
    again = compare(before, before)
    assert (again.verdict.state, again.verdict.level) == ("holds", "bit")
    assert {one.name for one in again.stages if one.state == "blind"} >= blind
