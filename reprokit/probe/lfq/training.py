"""`training.*`: a few quantisation-aware steps, and what must not change them.

A small model of the canonical kind learns to predict the next token. Weights are rounded to E4M3 on the way forward
and the gradient passes straight through the rounding (Bengio, Léonard, Courville 2013). AdamW (Loshchilov, Hutter
2019) and the grad scaler (Micikevicius et al. 2018) are written out: `torch.optim` imports seconds of compiler.
Dropout draws from torch's global generator, whose state is part of what a checkpoint keeps.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import model, quantiser
from reprokit.probe.lfq.formats import E4M3
from reprokit.probe.lfq.sensitive import racing
from reprokit.probe.recorder import Control, Stage, Twin

CONFIG = model.Config(vocabulary=64, context=32, width=64, heads=2, layers=1, hidden=128)
SEQUENCES, BATCH = 32, 8
STEPS, INTERRUPTED_AFTER = 8, 3
RATE, BETAS, EPSILON, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1
DROPOUT = 0.1
FIRST_SCALE, STEADY_STEPS = 2.0**20, 2  # of the grad scaler: too large at first, doubled after steady steps
DIFFERENCE = 2.0**-17  # of central differences: its square and the roundoff over it are both near 1e-10
AGREE = 1e-6
REVERSED = "every reduction over the width in reversed order"
NEXT_SEED = "the next seed"


@dataclass(frozen=True)
class State:
    """All that a training is: weights, both moments of AdamW, steps done, the grad scale and its steady steps."""

    weights: model.Weights
    first: model.Weights
    second: model.Weights
    step: int = 0
    scale: float = 1.0
    steady: int = 0


@dataclass(frozen=True)
class Learnt:
    """Losses float32 (steps,), the grad scale float32 (steps,) of each step, and the state at the end."""

    losses: torch.Tensor
    scales: torch.Tensor
    state: State


class Trained(model.Transformer):
    """The model with dropout behind each block, where it learns."""

    learning = False

    def mlp_block(self, x: torch.Tensor, layer: str, residual: str) -> tuple[torch.Tensor, str]:
        """As the model's, with dropout."""
        x, residual = super().mlp_block(x, layer, residual)
        return F.dropout(x, DROPOUT, self.learning), residual


def training_stages(device: torch.device, seed: int) -> Iterator[Stage]:
    """Gradients in two accumulations and against differences, loss curves, resumption, grad scaler, evaluation."""

    @cache
    def gradients(parts: int, reverse: bool = False) -> model.Weights:
        network = partial(Trained, CONFIG, reverse=reverse)
        return loss_and_gradients(network, raw(device), *batch(device, 0), parts=parts)[1]

    @cache
    def slopes(reverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        return directional(device, reverse)

    @cache
    def learnt(seed: int, half: bool = False, reverse: bool = False, scale: float = FIRST_SCALE) -> Learnt:
        return train(start(device, scale if half else 1.0), seed, STEPS, half, reverse)

    for parts in (1, 4):
        for name in gradients(1):
            yield _gradient_stage(name, parts, gradients, device)
    yield Stage(
        "training.slopes",
        "metric",
        lambda: slopes()[0],
        bound=lambda y: float(((y - slopes()[1]).abs() / (AGREE * (1 + y.abs()))).max()),
        control=Control(REVERSED, lambda: slopes(True)[0]),
    )
    yield Stage(
        "training.losses",
        "metric",
        lambda: learnt(seed).losses,
        control=Control(REVERSED, lambda: learnt(seed, reverse=True).losses),
    )
    for name, kept in _KEPT.items():
        yield Stage(
            f"training.{name}",
            "metric",
            lambda kept=kept: flat(kept(learnt(seed).state)),
            inputs=("training.losses",),
            control=Control(REVERSED, lambda kept=kept: flat(kept(learnt(seed, reverse=True).state))),
        )

    def end() -> torch.Tensor:
        return flat(learnt(seed).state.weights)

    yield Stage(
        "training.resumed",
        "metric",
        lambda: flat(interrupted(device, seed).weights),
        inputs=("training.weights",),
        bound=lambda y: 0.0 if torch.equal(y, end()) else math.inf,
        control=Control(NEXT_SEED, lambda: flat(interrupted(device, seed + 1).weights)),
        twin=Twin("training.weights", end),
    )
    yield Stage(
        "training.scaled.losses",
        "metric",
        lambda: learnt(seed, half=True).losses,
        control=Control(NEXT_SEED, lambda: learnt(seed + 1, half=True).losses),
    )
    yield Stage(
        "training.scaled.scales",
        "metric",
        lambda: learnt(seed, half=True).scales,
        control=Control(
            "a first scale of half the size", lambda: learnt(seed, half=True, scale=FIRST_SCALE / 2).scales
        ),
    )
    yield Stage(
        "training.evaluation",
        "metric",
        lambda: evaluated(learnt(seed).state.weights, device),
        inputs=("training.weights",),
        control=Control(REVERSED, lambda: evaluated(learnt(seed).state.weights, device, reverse=True)),
    )


_KEPT: dict[str, Callable[[State], model.Weights]] = {
    "weights": lambda state: state.weights,
    "first_moments": lambda state: state.first,
    "second_moments": lambda state: state.second,
}


def _gradient_stage(
    name: str, parts: int, gradients: Callable[..., model.Weights], device: torch.device
) -> Stage:
    """The gradient of one tensor, accumulated over `parts` of the batch."""
    lookup = name in ("embedding", "position")
    accumulation = f"{parts}x{BATCH // parts}"
    return Stage(
        f"training.gradients.{accumulation}.{name}",
        "metric",
        lambda: gradients(parts)[name],
        inputs=(f"weights.{name}",) if name == "embedding" else (),
        control=Control(REVERSED, lambda: gradients(parts, True)[name]),
        races=racing("torch.Tensor.__getitem__, differentiated", "cpu", device) if lookup else None,
        twin=None if parts == 1 else Twin(f"training.gradients.1x{BATCH}.{name}", lambda: gradients(1)[name]),
    )


def raw(device: torch.device) -> model.Weights:
    """The weights at the start, float32."""
    return {name: weight.to(device) for name, weight in model.raw_weights(CONFIG).items()}


def start(device: torch.device, scale: float = 1.0) -> State:
    """Nothing learnt yet."""
    weights = raw(device)
    zeros = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    return State(weights, zeros, zeros, scale=scale)


def batch(device: torch.device, index: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 tokens and their successors (8, 31) of one batch; the seed decides the order of the sequences.

    Each token follows from the one before, tᵢ₊₁ = (5 tᵢ + 7 + noise) mod 64 with a noise of 0 or 1.
    """
    noise = exact.below(2, (CONFIG.context, SEQUENCES), "training.noise")
    tokens = [exact.below(CONFIG.vocabulary, (SEQUENCES,), "training.first")]
    for row in noise[1:]:
        tokens.append((5 * tokens[-1] + 7 + row) % CONFIG.vocabulary)
    sequences = torch.stack(tokens, dim=1)[exact.permutation(SEQUENCES, f"training.order.{seed}")].to(device)
    chosen = sequences.roll(-BATCH * index, 0)[:BATCH]
    return chosen[:, :-1], chosen[:, 1:]


def loss_and_gradients(
    network: Callable[[model.Weights], model.Transformer],
    weights: model.Weights,
    tokens: torch.Tensor,
    successors: torch.Tensor,
    parts: int = 1,
    half: bool = False,
    scale: float = 1.0,
) -> tuple[torch.Tensor, model.Weights]:
    """Mean cross-entropy () of a batch and its gradients, float32, accumulated over `parts` of it.

    `network` makes the model of its weights, which are rounded to E4M3 first; with `half` everything up to the
    logits is float16, and the loss is multiplied by `scale` before, the gradients divided by it afterwards.
    """
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    total = torch.zeros((), device=tokens.device)
    sums: model.Weights = {}
    for x, y in zip(tokens.chunk(parts), successors.chunk(parts), strict=True):
        used = {name: straight_through(leaf) for name, leaf in leaves.items()}
        logits = network({name: weight.half() if half else weight for name, weight in used.items()})(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten()) / parts
        found = torch.autograd.grad(loss * scale, list(leaves.values()))
        total = total + loss.detach()
        sums = {
            name: sums[name] + gradient if name in sums else gradient
            for name, gradient in zip(leaves, found, strict=True)
        }
    return total, {name: gradient / scale for name, gradient in sums.items()}


def straight_through(weight: torch.Tensor) -> torch.Tensor:
    """The weight rounded to E4M3 in blocks, with the gradient of the weight itself."""
    rounded = quantiser.quantise(weight.detach(), E4M3).dequantise()
    return weight + (rounded - weight).detach()


def stepped(state: State, gradients: model.Weights) -> State:
    """The state after one step of AdamW with decoupled weight decay."""
    step, (beta1, beta2) = state.step + 1, BETAS
    weights, first, second = {}, {}, {}
    for name, gradient in gradients.items():
        first[name] = state.first[name] * beta1 + gradient * (1 - beta1)
        second[name] = state.second[name] * beta2 + gradient.square() * (1 - beta2)
        root = (second[name] / (1 - beta2**step)).sqrt() + EPSILON
        decayed = state.weights[name] * (1 - RATE * DECAY)
        weights[name] = decayed - RATE * (first[name] / (1 - beta1**step)) / root
    return replace(state, weights=weights, first=first, second=second, step=step)


def rescaled(state: State, overflowed: bool) -> State:
    """Halve the grad scale after an overflow, double it after steady steps."""
    if overflowed:
        return replace(state, scale=state.scale / 2, steady=0)
    if state.steady + 1 == STEADY_STEPS:
        return replace(state, scale=state.scale * 2, steady=0)
    return replace(state, steady=state.steady + 1)


def train(
    state: State, seed: int, turns: int, half: bool = False, reverse: bool = False, fresh: bool = True
) -> Learnt:
    """`turns` steps from a state on; a step whose gradients overflowed leaves the weights alone.

    A fresh training seeds torch's global generator, which one that goes on has restored.
    """
    device = state.weights["head"].device
    if fresh:
        torch.manual_seed(seed)
    losses, scales = [], []

    def network(weights: model.Weights) -> model.Transformer:
        made = Trained(CONFIG, weights, reverse=reverse)
        made.learning = True
        return made

    done = state.step
    for turn in range(done, done + turns):
        scales.append(state.scale)
        loss, gradients = loss_and_gradients(
            network, state.weights, *batch(device, turn, seed), half=half, scale=state.scale
        )
        losses.append(loss)
        overflowed = not all(gradient.isfinite().all() for gradient in gradients.values())
        state = state if overflowed else stepped(state, gradients)
        state = rescaled(state, overflowed) if half else state
    return Learnt(torch.stack(losses), torch.tensor(scales), state)


def interrupted(device: torch.device, seed: int) -> State:
    """The end of a training that was written to a checkpoint on its way and went on from what was read back."""
    halfway = train(start(device), seed, INTERRUPTED_AFTER).state
    file = io.BytesIO()
    generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    torch.save({"state": vars(halfway), "generator": generator}, file)
    torch.manual_seed(seed + 1)  # whatever happens in between
    file.seek(0)
    read = torch.load(file, weights_only=True)
    if device.type == "cuda":
        torch.cuda.set_rng_state(read["generator"].cpu(), device)
    else:
        torch.set_rng_state(read["generator"])
    return train(State(**read["state"]), seed, STEPS - INTERRUPTED_AFTER, fresh=False).state


def evaluated(weights: model.Weights, device: torch.device, reverse: bool = False) -> torch.Tensor:
    """Cross-entropy float32 (8,) of each sequence of the last batch, without dropout, as a low-bit model is served."""
    tokens, successors = batch(device, SEQUENCES // BATCH - 1)
    with torch.no_grad():
        served = {name: straight_through(weight) for name, weight in weights.items()}
        logits = Trained(CONFIG, served, reverse=reverse)(tokens)
        # flat: of losses with further dimensions torch has no deterministic form on a GPU
        losses = F.cross_entropy(logits.flatten(0, 1), successors.flatten(), reduction="none")
        return losses.unflatten(0, successors.shape).mean(dim=1)


def directional(device: torch.device, reverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Slopes of the loss, float64 (tensors,), along one direction for each tensor: by autograd and by differences.

    In float64 and without rounding to E4M3, whose steps have no slope. The central difference errs by its step
    squared times a third derivative, and by the roundoff of the loss over the step.
    """
    weights = {name: weight.double().requires_grad_() for name, weight in raw(device).items()}
    tokens, successors = batch(device, 0)

    def loss(weights: model.Weights) -> torch.Tensor:
        logits = Trained(CONFIG, weights, reverse=reverse)(tokens)
        return F.cross_entropy(logits.flatten(0, 1), successors.flatten())

    gradients = torch.autograd.grad(loss(weights), list(weights.values()))
    analytic, numeric = [], []
    with torch.no_grad():
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            direction = exact.bell(tuple(weight.shape), f"training.direction.{name}").to(weight)
            direction = direction / math.sqrt(direction.numel())
            ahead, behind = (
                loss({**weights, name: weight + sign * DIFFERENCE * direction}) for sign in (1, -1)
            )
            analytic.append((gradient * direction).sum())
            numeric.append((ahead - behind) / (2 * DIFFERENCE))
    return torch.stack(analytic), torch.stack(numeric)


def flat(weights: model.Weights) -> torch.Tensor:
    """float32 (elements,): all tensors one behind the other."""
    return torch.cat([weight.flatten() for weight in weights.values()])
