"""Seeding and every determinism switch, in one call, for a user's training script and for the probe's mode strict.

Needs torch; NumPy is seeded where it is installed. Nothing here starts CUDA or imports dynamo or inductor.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MOST = 2**32  # seeds are below it: NumPy and PYTHONHASHSEED take 32 bits
HASH_SEED, WORKSPACE = "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"
# read when inductor is imported, which costs seconds and is left to whoever compiles
_INDUCTOR = "TORCHINDUCTOR_DETERMINISTIC"
_WORKSPACES = (":4096:8", ":16:8")  # those under which cuBLAS promises equal bits
_PRECISIONS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@dataclass(frozen=True)
class Seeding:
    """What `seed_everything` did: `applied` names what is seeded and set.

    `too_late` holds a sentence for each thing that this process cannot set any more, and what to do.
    """

    seed: int
    deterministic: bool
    applied: tuple[str, ...]
    too_late: tuple[str, ...]


@dataclass(frozen=True)
class _Switch:
    """One setting of torch; reading may raise RuntimeError where its old and new form contradict each other."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    wanted: Any


_before: dict[str, Any] = {}  # by name, each switch as it was before the first call
_missed_workspace = False


def seed_everything(seed: int, deterministic: bool = True) -> Seeding:
    """Seed Python, NumPy and torch on every device; with `deterministic`, make torch repeat itself bit by bit.

    That takes fixed cuBLAS workspaces, no autotuning, no TF32, no reduced-precision sums, attention written out, and
    an error from every operator that has no deterministic form. Call it before anything touches the GPU, in a process
    that was started with PYTHONHASHSEED set to the seed. What is too late is returned, and each sentence is a
    RuntimeWarning.

    Raises:
        TypeError: the seed is no int.
        ValueError: it is not in 0 … 2**32 − 1.
    """
    _check(seed)
    too_late = [] if _hash_seed_is(seed) else [_about_hash_seed(seed)]
    applied = _seed(seed)
    if deterministic:
        if _set_workspace():
            applied.append(WORKSPACE)
        else:
            too_late.append(
                f"CUDA was started before {WORKSPACE} was set, so that cuBLAS may sum in another order from run to "
                f"run: set {WORKSPACE}={_WORKSPACES[0]} before the program starts, or call seed_everything before "
                "anything touches the GPU"
            )
        applied += _switch_on()
    for sentence in too_late:
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    return Seeding(seed, deterministic, tuple(applied), tuple(too_late))


def variables(seed: int) -> dict[str, str]:
    """The environment variables that must be set before an interpreter starts."""
    workspace = os.environ.get(WORKSPACE)
    return {
        HASH_SEED: str(seed),
        WORKSPACE: workspace if workspace in _WORKSPACES else _WORKSPACES[0],
    }


@contextmanager
def without_switches() -> Iterator[None]:
    """Every switch of torch as it was before `seed_everything`; after the block as it is now.

    Variables stay: they have been read.
    """
    switches = _switches()
    now = _read(switches)
    _write(switches, _before)
    try:
        yield
    finally:
        _write(switches, now)


def _check(seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"a seed is an int, and {seed!r} is of type {type(seed).__name__}")
    if not 0 <= seed < MOST:
        raise ValueError(f"a seed is from 0 to {MOST - 1}, and {seed} is not")


def _hash_seed_is(seed: int) -> bool:
    """Whether this interpreter was started with the hash seed, as far as it can tell: the variable may be newer."""
    randomised = bool(sys.flags.hash_randomization)  # false exactly for the hash seed 0
    asked = os.environ.get(HASH_SEED) == str(seed) and not sys.flags.ignore_environment
    return asked and randomised == (seed != 0)


def _about_hash_seed(seed: int) -> str:
    return (
        f"this interpreter was not started with {HASH_SEED}={seed}, which it reads only then, so that the order of "
        f"sets differs from run to run: start it as `{HASH_SEED}={seed} python …`"
    )


def _seed(seed: int) -> list[str]:
    """The names of the libraries whose generators start at `seed` now."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)  # that of every GPU too, at the start of CUDA where it has not started yet
    try:
        import numpy
    except ImportError:
        return ["random", "torch"]
    numpy.random.seed(seed)
    return ["random", "torch", "numpy"]


def _set_workspace() -> bool:
    """Whether cuBLAS is sure to read a deterministic workspace; it does so once, with the first product."""
    global _missed_workspace
    import torch

    if os.environ.get(WORKSPACE) not in _WORKSPACES:
        _missed_workspace |= torch.cuda.is_initialized()
        os.environ[WORKSPACE] = _WORKSPACES[0]
    return not _missed_workspace


def _switch_on() -> list[str]:
    """The names of the switches that this torch has, all of them on."""
    switches = _switches()
    for name, value in _read(switches).items():
        _before.setdefault(name, value)
    _write(switches, {switch.name: switch.wanted for switch in switches})
    os.environ[_INDUCTOR] = "1"
    return [switch.name for switch in switches] + [_INDUCTOR]


def _read(switches: list[_Switch]) -> dict[str, Any]:
    """By name the value of every switch that can be read."""
    values = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old settings, some warn
        for switch in switches:
            try:
                values[switch.name] = switch.read()
            except (
                RuntimeError
            ):  # an old setting that a new one contradicts: the new ones are read too, and count
                continue
    return values


def _write(switches: list[_Switch], values: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for switch in switches:
            if switch.name in values:
                switch.write(values[switch.name])


def _switches() -> list[_Switch]:
    """Every switch that this torch has, in the order in which they are set.

    The old settings of float32 come before the new ones, which they overwrite, and which refuse to be contradicted.
    """
    import torch
    from torch.utils import deterministic

    backends, cuda = torch.backends, torch.backends.cuda
    return [
        # what `use_deterministic_algorithms(True)` sets, which imports inductor
        _Switch(
            "deterministic_algorithms",
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            "error",
        ),
        *_attribute("fill_uninitialized_memory", deterministic, "fill_uninitialized_memory", True),
        *_attribute("cudnn.deterministic", backends.cudnn, "deterministic", True),
        *_attribute("cudnn.benchmark", backends.cudnn, "benchmark", False),
        _Switch(
            "float32_matmul_precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "highest",
        ),
        _Switch("cudnn.allow_tf32", *_accessors(backends.cudnn, "allow_tf32"), False),
        *(switch for path in _PRECISIONS for switch in _precision(backends, path)),
        *(switch for name in _REDUCTIONS for switch in _reduction(cuda.matmul, name)),
        *_attribute("matmul.allow_fp16_accumulation", cuda.matmul, "allow_fp16_accumulation", False),
        *_pair("attention.math", cuda, "math_sdp_enabled", "enable_math_sdp", True),
        *_pair("attention.flash", cuda, "flash_sdp_enabled", "enable_flash_sdp", False),
        *_pair("attention.efficient", cuda, "mem_efficient_sdp_enabled", "enable_mem_efficient_sdp", False),
        *_pair("attention.cudnn", cuda, "cudnn_sdp_enabled", "enable_cudnn_sdp", False),
        *_pair(
            "attention.math_reduced_precision",
            cuda,
            "fp16_bf16_reduction_math_sdp_allowed",
            "allow_fp16_bf16_reduction_math_sdp",
            False,
        ),
        *_attribute("mkldnn.deterministic", backends.mkldnn, "deterministic", True),
        *_attribute(
            "inductor.deterministic", sys.modules.get("torch._inductor.config"), "deterministic", True
        ),
    ]


def _accessors(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _attribute(name: str, owner: Any, attribute: str, wanted: Any) -> Iterator[_Switch]:
    """A switch that is an attribute, where this torch has it."""
    if hasattr(owner, attribute):
        yield _Switch(name, *_accessors(owner, attribute), wanted)


def _pair(name: str, owner: Any, read: str, write: str, wanted: bool) -> Iterator[_Switch]:
    """A switch that is a pair of functions, where this torch has them."""
    if hasattr(owner, read) and hasattr(owner, write):
        yield _Switch(name, getattr(owner, read), getattr(owner, write), wanted)


def _precision(backends: Any, path: str) -> Iterator[_Switch]:
    """The new setting of float32 products of one library and operator, from torch 2.9 on."""
    library, operator = path.split(".")
    owner = getattr(getattr(backends, library), operator, None)
    if owner is not None:
        yield from _attribute(f"{path}.fp32_precision", owner, "fp32_precision", "ieee")


def _reduction(matmul: Any, name: str) -> Iterator[_Switch]:
    """Sums of cuBLAS in the precision of their 16-bit inputs.

    Whether it may split them over K is left as it is: forbidding that raises unless cuBLASLt is preferred, and such
    sums repeat themselves too.
    """
    split = f"{name}_split_k"  # torch 2.9 sets the two together
    if hasattr(matmul, split):
        yield _Switch(
            f"matmul.{name}",
            lambda: (getattr(matmul, name), getattr(matmul, split)),
            lambda value: setattr(matmul, name, value),
            (False, getattr(matmul, split)),
        )
    else:
        yield from _attribute(f"matmul.{name}", matmul, name, False)
