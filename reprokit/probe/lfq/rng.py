"""`rng.*`: streams after seeding, and what each part leaves of the global generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch

from reprokit.probe import generators
from reprokit.probe.hashing import Array
from reprokit.probe.recorder import Control, Stage

STREAM = 4099  # elements of each random stream: no multiple of a vector width


def rng_stages(device: torch.device, seed: int) -> Iterator[Stage]:
    """Streams of Python, NumPy and torch after seeding; integers and uniforms apart from normal numbers."""
    streams: dict[str, Callable[[int], Array]] = {
        "rng.python": _python_stream,
        "rng.numpy_legacy": lambda s: np.random.RandomState(s).random_sample(STREAM),
        "rng.numpy_uniform": lambda s: np.random.default_rng(s).random(STREAM),
        "rng.numpy_normal": lambda s: np.random.default_rng(s).standard_normal(STREAM),
        "rng.torch_uniform": lambda s: _seeded(s, torch.device("cpu"), torch.rand),
        "rng.torch_normal": lambda s: _seeded(s, torch.device("cpu"), torch.randn),
        "rng.torch_permutation": lambda s: torch.randperm(STREAM, generator=torch.Generator().manual_seed(s)),
    }
    if device.type == "cuda":
        streams |= {
            "rng.cuda_uniform": lambda s: _seeded(s, device, torch.rand),
            "rng.cuda_normal": lambda s: _seeded(s, device, torch.randn),
        }
    for name, stream in streams.items():
        yield Stage(
            name,
            "rng",
            lambda stream=stream: stream(seed),
            control=Control("the next seed", lambda stream=stream: stream(seed + 1)),
        )


def _python_stream(seed: int) -> np.ndarray:
    generator = random.Random(seed)
    return np.array([generator.random() for _ in range(STREAM)])


def _seeded(seed: int, device: torch.device, draw: Callable[..., torch.Tensor]) -> torch.Tensor:
    return draw(STREAM, generator=torch.Generator(device).manual_seed(seed), device=device)


def left_stage(part: str, device: torch.device) -> Stage:
    """What a part has left of the global generators, uint8 (generators, 32): the digest of each one's state."""
    return Stage(
        f"rng.after.{part}",
        "rng",
        lambda: generators.states(device),
        control=Control("one more number drawn from each", lambda: _one_more(device)),
    )


def _one_more(device: torch.device) -> torch.Tensor:
    random.random()
    np.random.random()
    torch.rand(1)
    torch.rand(1, device=device)
    return generators.states(device)
