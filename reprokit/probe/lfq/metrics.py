"""`metrics.*`: a small task that is really trained, over several seeds at once.

scikit-learn's digits, a network 64 → 32 → 10, minibatch descent with momentum written out (`torch.optim` would
import seconds of compiler). It is evaluated through E4M3 weights, as a low-bit model is served.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional as F

from reprokit.probe import exact
from reprokit.probe.lfq import data, quantiser
from reprokit.probe.lfq.formats import E4M3
from reprokit.probe.recorder import Control, Stage

SEEDS = 5
TRAINING = 1437  # images; the last 360 are held out
HIDDEN, CLASSES = 32, 10
BATCH, EPOCHS = 240, 20
RATE, MOMENTUM = 0.25, 0.9
DIRECTIONS = {"digits.accuracy": "higher", "digits.f1": "higher", "digits.loss": "lower"}


@dataclass(frozen=True)
class Training:
    """Losses (S, steps) float32 of S seeds, and the weights (S, 64, hidden) and (S, hidden, 10) they end with."""

    losses: torch.Tensor
    weights: list[torch.Tensor]


def seeds(base: int) -> list[int]:
    """The seeds of the trained task."""
    return [base + i for i in range(SEEDS)]


def metric_stages(device: torch.device, base: int) -> Iterator[Stage]:
    """The loss curves of all seeds, and what the trained networks reach on the held-out images."""
    training = cache(partial(train, device, base))
    yield Stage(
        "metrics.digits.losses",
        "metric",
        lambda: training(reverse=False).losses,
        inputs=("data.digits", "data.labels"),
        control=Control("pixels in reversed order", lambda: training(reverse=True).losses),
    )
    images, labels = (part[TRAINING:].to(device) for part in data.digits())
    moved = torch.nextafter(images, torch.ones_like(images))
    yield Stage(
        "metrics.digits.evaluation",
        "metric",
        lambda: evaluate(images, labels, training(reverse=False).weights),
        inputs=("metrics.digits.losses",),
        control=Control(
            "every pixel moved by one ulp", lambda: evaluate(moved, labels, training(reverse=False).weights)
        ),
    )


def summarised(evaluation: torch.Tensor) -> list[dict[str, Any]]:
    """The metrics of a document from an evaluation (3, S): values by seed, mean and sample deviation."""
    return [_metric(name, values) for name, values in zip(DIRECTIONS, evaluation.tolist(), strict=True)]


def _metric(name: str, values: list[float]) -> dict[str, Any]:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return {
        "name": name,
        "direction": DIRECTIONS[name],
        "values": values,
        "mean": mean,
        "deviation": deviation,
    }


def train(device: torch.device, base: int, reverse: bool) -> Training:
    """Train one network a seed, side by side in batched products; `reverse` only reorders the pixels."""
    images, labels = (part.to(device) for part in data.digits())
    order = torch.arange(data.PIXELS - 1, -1, -1) if reverse else torch.arange(data.PIXELS)
    images = images[:, order]
    streams = [f"metrics.seed{seed}" for seed in seeds(base)]
    first = torch.stack([exact.bell((data.PIXELS, HIDDEN), f"{s}.first")[order] for s in streams]) / 8
    second = torch.stack([exact.bell((HIDDEN, CLASSES), f"{s}.second") for s in streams]) / 8
    weights = [first.to(device), second.to(device)]
    speeds = [torch.zeros_like(weight) for weight in weights]
    losses = []
    for epoch in range(EPOCHS):
        shuffles = torch.stack([exact.permutation(TRAINING, f"{s}.epoch{epoch}") for s in streams]).to(device)
        for chosen in shuffles.split(BATCH, dim=1):  # (S, B)
            loss, gradients = loss_and_gradients(images[chosen], labels[chosen], weights)
            for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
                speed.mul_(MOMENTUM).add_(gradient)
                weight.sub_(speed, alpha=RATE)
            losses.append(loss)
    return Training(torch.stack(losses, dim=1), weights)


def loss_and_gradients(
    x: torch.Tensor, labels: torch.Tensor, weights: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Mean cross-entropy (S,) of images (S, B, 64) and its gradients, by the chain rule written out."""
    hidden = torch.relu(x @ weights[0])  # (S, B, hidden)
    log_probability = F.log_softmax(hidden @ weights[1], dim=-1)  # (S, B, classes)
    loss = -log_probability.gather(-1, labels.unsqueeze(-1)).mean(dim=(1, 2))
    slope = (log_probability.exp() - F.one_hot(labels, CLASSES)) / labels.shape[1]
    back = (slope @ weights[1].mT) * (hidden > 0)
    return loss, [x.mT @ back, hidden.mT @ slope]


def evaluate(x: torch.Tensor, labels: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """float64 (3, S): accuracy, macro F1 and cross-entropy of each seed's network through E4M3 weights."""
    first, second = (quantiser.quantise(weight.mT.contiguous(), E4M3).dequantise().mT for weight in weights)
    log_probability = F.log_softmax(torch.relu(x @ first) @ second, dim=-1)  # (S, B, classes)
    confusion = torch.stack(
        [_confusion(labels, guess) for guess in log_probability.argmax(-1)]
    )  # (S, 10, 10)
    hits = confusion.diagonal(dim1=1, dim2=2).double()
    f1 = 2 * hits / (confusion.sum(1) + confusion.sum(2))
    loss = -log_probability.gather(-1, labels.expand(len(first), -1).unsqueeze(-1)).double().mean(dim=(1, 2))
    return torch.stack((hits.sum(1) / len(labels), f1.mean(1), loss))


def _confusion(labels: torch.Tensor, guesses: torch.Tensor) -> torch.Tensor:
    return torch.bincount(labels * CLASSES + guesses, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
