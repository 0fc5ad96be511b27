"""`rng.*`: streams after seeding, and what each part leaves of the global generators.

A stream's name ends in its number of elements; one that says none has 4,099. The sizes are those at which kernels
change their path: on a GPU the grid of the generator's kernels, multiprocessors × threads that each can hold, below
which every element has a thread of its own; on the CPU 16, from which on torch draws normal numbers in vectors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.nn import functional as F

from reprokit.probe import generators
from reprokit.probe.hashing import Array
from reprokit.probe.recorder import Control, Stage

STREAM = 4099  # elements of each random stream: no multiple of a vector width
LONG = (1 << 20) + 1  # beyond the grid of every GPU
LARGE = (f".{LONG}", ".grid_minus_1", ".grid", ".grid_plus_1")  # ends of the names that only `full` has
VECTORS = (15, 16, 17)  # around the least count that torch's CPU kernel draws in vectors
DROPPED = 0.1
FEW = 256  # of a multinomial choice

Draw = Callable[[int, torch.Generator], torch.Tensor]
# with the number of elements and a seeded generator, on whose device they are drawn
KINDS: dict[str, Draw] = {
    "uniform": lambda n, g: torch.rand(n, generator=g, device=g.device),
    "normal": lambda n, g: torch.randn(n, generator=g, device=g.device),
    "integers": lambda n, g: torch.randint(1000, (n,), generator=g, device=g.device, dtype=torch.int32),
    "permutation": lambda n, g: torch.randperm(n, generator=g, device=g.device),
    "bernoulli": lambda n, g: torch.empty(n, dtype=torch.bool, device=g.device).bernoulli_(
        DROPPED, generator=g
    ),
    "exponential": lambda n, g: torch.empty(n, device=g.device).exponential_(generator=g),
    "multinomial": lambda n, g: torch.multinomial(_chances(n, g.device), FEW, generator=g),
}


def rng_stages(device: torch.device, seed: int, full: bool = True) -> Iterator[Stage]:
    """Streams of Python, NumPy, torch and the GPU after seeding, each held against that of the next seed."""
    streams = _python_and_numpy() | _torch("torch", torch.device("cpu"), _cpu_sizes) | _global(device)
    if device.type == "cuda":
        streams |= _torch("cuda", device, _cuda_sizes(device))
    for name, stream in streams.items():
        if full or not name.endswith(LARGE):
            yield Stage(
                f"rng.{name}",
                "rng",
                lambda stream=stream: stream(seed),
                control=Control("the next seed", lambda stream=stream: stream(seed + 1)),
            )


def _python_and_numpy() -> dict[str, Callable[[int], Array]]:
    """Streams by name, as functions of the seed, of generators that belong to nobody else."""
    kinds: dict[str, Callable[[int, int], np.ndarray]] = {
        "numpy_legacy": lambda seed, n: np.random.RandomState(seed).random_sample(n),
        "numpy_uniform": lambda seed, n: np.random.default_rng(seed).random(n),
        "numpy_normal": lambda seed, n: np.random.default_rng(seed).standard_normal(n),
        "numpy_integers": lambda seed, n: np.random.default_rng(seed).integers(1000, size=n, dtype=np.int32),
    }
    streams: dict[str, Callable[[int], Array]] = {
        "python": _python_stream,
        # the polar method: its logarithm is the C library's
        "numpy_legacy_normal": lambda seed: np.random.RandomState(seed).standard_normal(STREAM),
    }
    for kind, draw in kinds.items():
        streams[kind] = lambda seed, draw=draw: draw(seed, STREAM)
        streams[f"{kind}.{LONG}"] = lambda seed, draw=draw: draw(seed, LONG)
    return streams


def _torch(
    prefix: str, device: torch.device, sizes: Callable[[str], dict[str, int]]
) -> dict[str, Callable[[int], Array]]:
    """Every kind of stream at each of its sizes."""
    return {
        f"{prefix}_{kind}{suffix}": lambda seed, draw=draw, size=size: draw(
            size, torch.Generator(device).manual_seed(seed)
        )
        for kind, draw in KINDS.items()
        for suffix, size in sizes(kind).items()
    }


def _cpu_sizes(kind: str) -> dict[str, int]:
    """Sizes of a kind, by what they add to its name."""
    found = {"": STREAM}
    if kind == "normal":
        found |= {f".{size}": size for size in VECTORS}
    if kind != "multinomial":  # that one is `exponential` and a sort, and takes as long as all others
        found[f".{LONG}"] = LONG
    return found


def _cuda_sizes(device: torch.device) -> Callable[[str], dict[str, int]]:
    grid = grid_size(device)
    borders = {".grid_minus_1": grid - 1, ".grid": grid, ".grid_plus_1": grid + 1, f".{LONG}": LONG}
    return lambda kind: {"": STREAM} | borders


def grid_size(device: torch.device) -> int:
    """Threads that a GPU holds at once: 40,960 on a T4, 221,184 on an A100, 270,336 on an H200."""
    gpu = torch.cuda.get_device_properties(device)
    return int(gpu.multi_processor_count * gpu.max_threads_per_multi_processor)


def _global(device: torch.device) -> dict[str, Callable[[int], Array]]:
    """Streams of the generators that a process shares, after all of them were seeded together."""
    draws: dict[str, Callable[[], Array]] = {
        "python_global": lambda: np.array([random.random() for _ in range(STREAM)]),
        "numpy_global": lambda: np.random.random_sample(STREAM),
        "torch_global": lambda: torch.rand(STREAM),
        "torch_dropout": lambda: F.dropout(torch.ones(STREAM), DROPPED),
    }
    if device.type == "cuda":
        draws |= {
            "cuda_global": lambda: torch.rand(STREAM, device=device),
            "cuda_dropout": lambda: F.dropout(torch.ones(STREAM, device=device), DROPPED),
        }
    return {name: lambda seed, draw=draw: _after_seeding(seed, draw) for name, draw in draws.items()}


def _after_seeding(seed: int, draw: Callable[[], Array]) -> Array:
    with generators.kept():
        generators.seed(seed)
        return draw()


def _python_stream(seed: int) -> np.ndarray:
    generator = random.Random(seed)
    return np.array([generator.random() for _ in range(STREAM)])


def _chances(count: int, device: torch.device) -> torch.Tensor:
    """float32 (count,): unequal weights of a multinomial choice, small integers."""
    return 1.0 + torch.arange(count, device=device) % 7


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
