"""The transformer against a reference written another way, and its traces."""

import math

import pytest

torch = pytest.importorskip("torch")

from reprokit.probe.lfq import data, metrics, model, transformer  # noqa: E402

pytestmark = pytest.mark.torch
CONFIG = model.Config()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights():
    return model.quantised_weights(model.raw_weights(CONFIG))


def reference(tokens, weights):
    """The same model in float64, token by token and head by head, without torch's fused functions."""
    w = {name: weight.double() for name, weight in weights.items()}

    def norm(x):
        return x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()

    logits = []
    for row in tokens.tolist():
        x = torch.stack([w["embedding"][token] + w["position"][i] for i, token in enumerate(row)])
        for layer in range(CONFIG.layers):
            q, k, v = (w[f"layer{layer}.qkv"] @ norm(x).T).chunk(3)
            heads = []
            for h in range(CONFIG.heads):
                part = slice(h * 32, (h + 1) * 32)
                mixed = []
                for i in range(len(row)):
                    scores = q[part, i] @ k[part, : i + 1] / math.sqrt(32)
                    mixed.append(v[part, : i + 1] @ scores.softmax(0))
                heads.append(torch.stack(mixed))
            x = x + torch.cat(heads, -1) @ w[f"layer{layer}.attention_out"].T
            hidden = norm(x) @ w[f"layer{layer}.mlp_in"].T
            x = x + hidden * torch.special.ndtr(hidden) @ w[f"layer{layer}.mlp_out"].T
        logits.append(norm(x) @ w["head"].T)
    return torch.stack(logits)


def test_the_model_is_the_one_in_the_textbook(weights):
    tokens = data.tokens(CPU)
    logits = transformer.forward(CONFIG, weights, tokens, "fp32")["logits.fp32"].result
    expected = reference(tokens, weights)
    assert ((logits - expected).norm() / expected.norm()).item() < 2e-6


def test_a_later_token_changes_no_earlier_logit(weights):
    tokens = data.tokens(CPU)
    other = tokens.clone()
    other[:, 40:] = (other[:, 40:] + 1) % 256
    one, two = (
        transformer.forward(CONFIG, weights, t, "fp32")["logits.fp32"].result for t in (tokens, other)
    )
    assert torch.equal(one[:, :40], two[:, :40])
    assert not torch.equal(one[:, 40:], two[:, 40:])


def test_each_quantisation_is_hashed_before_and_after():
    steps = {stage.name: stage for stage in transformer.layer_stages(CPU, CONFIG)}
    codes = [stage for stage in steps.values() if stage.operator == "quantize"]
    assert len(codes) == 4 * CONFIG.layers
    for stage in codes:
        (before,) = stage.inputs
        assert steps[before].compute().is_floating_point()
        assert stage.compute().dtype == torch.uint8
        assert stage.control is not None


def test_quantised_activations_cost_accuracy_but_not_the_model(weights):
    tokens = data.tokens(CPU)
    full, low = (
        transformer.forward(CONFIG, weights, tokens, v)[f"logits.{v}"].result for v in ("fp32", "fp8")
    )
    assert 0.005 < ((full - low).norm() / full.norm()).item() < 0.2


def test_logits_hold_every_variant():
    stages = {stage.name: stage for stage in transformer.layer_stages(CPU, CONFIG)}
    every = stages["logits"].compute()
    assert every.shape == (4, 2, 64, 256)
    assert stages["logits"].inputs == ("logits.fp32", "logits.fp8", "logits.bf16", "logits.fp16")
    for logits, name in zip(every, stages["logits"].inputs, strict=True):
        assert torch.equal(logits, stages[name].compute().float())


def test_every_input_of_a_stage_is_a_stage_before_it():
    from reprokit.probe.lfq.parts import parts

    seen = set()
    for part in parts(CPU, "full", 0).values():
        for stage in part():
            assert set(stage.inputs) <= seen, stage.name
            seen.add(stage.name)


def test_the_gradients_are_those_of_autograd():
    x, labels = (part[:50] for part in data.digits())
    weights = [
        torch.randn(3, 64, 32, generator=torch.Generator().manual_seed(1)) / 8,
        torch.randn(3, 32, 10, generator=torch.Generator().manual_seed(2)) / 8,
    ]
    chosen = torch.arange(50).expand(3, -1)
    loss, gradients = metrics.loss_and_gradients(x[chosen], labels[chosen], weights)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    logits = torch.relu(x[chosen] @ leaves[0]) @ leaves[1]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[chosen].flatten(), reduction="none"
    )
    expected.reshape(3, 50).mean(1).sum().backward()
    torch.testing.assert_close(loss, expected.detach().reshape(3, 50).mean(1))
    for gradient, leaf in zip(gradients, leaves, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)


def evaluated(training):
    images, labels = data.digits()
    return metrics.summarised(metrics.evaluate(images[1437:], labels[1437:], training.weights))


def test_the_task_is_learnt_and_seeds_differ():
    training = metrics.train(CPU, 0, reverse=False)
    summary = {metric["name"]: metric for metric in evaluated(training)}
    assert 0.88 < summary["digits.accuracy"]["mean"] < 0.97
    assert abs(summary["digits.f1"]["mean"] - summary["digits.accuracy"]["mean"]) < 0.01
    assert training.losses[:, -1].max() < 0.3 < 1.5 < training.losses[:, 0].min()
    assert len(set(summary["digits.loss"]["values"])) == 5
    other = evaluated(metrics.train(CPU, 100, reverse=False))
    assert other[0]["values"] != summary["digits.accuracy"]["values"]


def test_f1_and_deviation_on_a_case_worked_by_hand():
    # classes 0 and 1 of ten: guesses 0 0 1 1 for labels 0 1 1 1; the other classes are perfect
    labels = torch.tensor([0, 1, 1, 1, *range(2, 10)])
    guesses = torch.tensor([0, 0, 1, 1, *range(2, 10)])
    confusion = metrics._confusion(labels, guesses)
    assert confusion[1].tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    hits = confusion.diagonal().double()
    assert (2 * hits / (confusion.sum(0) + confusion.sum(1))).mean().item() == pytest.approx(
        (2 / 3 + 4 / 5 + 8) / 10
    )
    metric = metrics._metric("digits.f1", [0.83, 0.834])
    assert (metric["mean"], metric["deviation"]) == (pytest.approx(0.832), pytest.approx(0.004 / 2**0.5))
