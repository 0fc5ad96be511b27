"""Fingerprints for tests: small, valid and sealed, with whatever is planted in them."""

from __future__ import annotations

import copy
import math
import random
from typing import Any, get_args, get_origin

import msgspec

from reprokit.model import canonical
from reprokit.model.environment import Cpu, Driver, Gpu, NumPy, Python, System, Torch
from reprokit.model.fingerprint import Fingerprint

COUNT = 512
SEEDS = [0, 1, 2, 3, 4]


def blank(model: type[Any]) -> dict[str, Any]:
    """An instance of a model's section in which every field is null, or blank itself."""
    fields = {}
    for field in msgspec.structs.fields(model):
        kind = get_args(field.type)[0] if get_origin(field.type) is not None else field.type
        kinds = [*get_args(field.type), kind]
        section = next(
            (one for one in kinds if isinstance(one, type) and issubclass(one, msgspec.Struct)), None
        )
        fields[field.encode_name] = blank(section) if section else None
    return fields


def environment() -> dict[str, Any]:
    """A plain CPU machine."""
    torch = blank(Torch) | {
        "version": "2.13.0+cpu",
        "cpu_capability": "AVX512",
        "num_threads": 2,
        "mkl_cbwr": "BRANCH_OFF",
    }
    torch["inductor"] = None
    numpy = blank(NumPy) | {"version": "2.4.6"}
    numpy["blas"] |= {"name": "scipy-openblas", "core": "SkylakeX"}
    system = {
        "os": "Linux",
        "kernel": "6.1.0",
        "machine": "x86_64",
        "libc": "glibc 2.36",
        "byte_order": "little",
    }
    sections: dict[str, Any] = {
        "system": blank_section("system") | system,
        "python": blank_section("python") | {"version": "3.11.9", "packages_sha256": sha("packages")},
        "packages": {"numpy": "2.4.6", "torch": "2.13.0+cpu", "ruamel.yaml": "0.18"},
        "cpu": blank(Cpu) | {"model": "Example CPU", "isa": "AVX512_CORE"},
        "gpus": [],
        "driver": blank(Driver),
        "torch": torch,
        "numpy": numpy,
        "libraries": {
            "libgomp.so.1": {"path": "libgomp.so.1", "version": "1.0.0", "build_id": "abcd", "sha256": None}
        },
        "variables": {},
        "source": {"commit": "a" * 40, "dirty": False, "reprokit": "0.1.0", "probe_sha256": sha("probe")},
        "image": None,
        "absent": [],
    }
    return sections


def blank_section(name: str) -> dict[str, Any]:
    """The blank section `name` of an environment."""
    return blank({"system": System, "python": Python}[name])


def gpu(**fields: Any) -> dict[str, Any]:
    """One GPU."""
    return blank(Gpu) | {"index": 0, "name": "NVIDIA H200", "sm_count": 132} | fields


def sha(content: object) -> str:
    """A hash for a piece of content."""
    return canonical.digest({"content": content})


def values(seed: int, count: int = COUNT) -> list[float]:
    """Ordinary numbers."""
    generator = random.Random(seed)
    return [generator.gauss(0, 1) for _ in range(count)]


def jittered(numbers: list[float], relative: float, seed: int = 99) -> list[float]:
    """`numbers` moved by noise of exactly that relative L2 norm."""
    noise = values(seed, len(numbers))
    scale = relative * math.hypot(*numbers) / math.hypot(*noise)
    return [number + scale * shift for number, shift in zip(numbers, noise, strict=True)]


def sketch(numbers: list[float], buckets: int = 64) -> dict[str, Any]:
    """A CountSketch as the probe makes one: fixed hashes and signs by position."""
    finite = [number for number in numbers if math.isfinite(number)]
    few = len(numbers) <= buckets
    sums = [0.0] * buckets
    if not few:
        for position, number in enumerate(numbers):
            if math.isfinite(number):
                word = _word(position)
                sums[word % buckets] += number * (1 if word >> 63 else -1)
    return {
        "numel": len(numbers),
        "norm": math.hypot(*finite),
        "minimum": min(finite, default=None),
        "maximum": max(finite, default=None),
        "nan": sum(number != number for number in numbers),
        "infinite": sum(math.isinf(number) for number in numbers),
        "samples": canonical.tagged(numbers if few else numbers[:: len(numbers) // 16][:16]),
        "buckets": [] if few else sums,
    }


def _word(position: int) -> int:
    """SplitMix64 of a position (Steele, Lea, Flood 2014)."""
    word = (position + 1) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def stage(
    name: str, operator: str = "gemm", content: list[float] | None = None, **fields: Any
) -> dict[str, Any]:
    """One stage whose hash follows from its content."""
    numbers = values(sum(name.encode())) if content is None else content
    record = {
        "name": name,
        "version": 1,
        "operator": operator,
        "kind": "sensitive",
        "state": "ok",
        "reason": None,
        "inputs": [],
        "dtype": "float32",
        "shape": [len(numbers)],
        "sha256": sha([str(number) for number in numbers]),
        "expected": None,
        "sketch": sketch(numbers),
        "bound": None,
        "control": None,
    }
    if fields.get("kind") == "invariant":
        record["expected"] = record["sha256"]
    return record | fields


def unavailable(name: str, operator: str = "gemm", reason: str = "not on this machine") -> dict[str, Any]:
    """A stage that a machine cannot run."""
    nothing = {"dtype": None, "shape": None, "sha256": None, "sketch": None}
    return stage(name, operator, state="unavailable", reason=reason, **nothing)


def metric(
    name: str = "digits.accuracy", numbers: list[float] | None = None, direction: str = "higher"
) -> dict[str, Any]:
    """One metric over the seeds."""
    numbers = [0.95, 0.96, 0.94, 0.955, 0.945] if numbers is None else numbers
    return {"name": name, "direction": direction, "values": numbers, "mean": numbers[0], "deviation": 0.0}


def trace() -> list[dict[str, Any]]:
    """The stages of a small probe."""
    return [
        stage("invariant.gemm", "gemm", kind="invariant"),
        stage("rng.torch", "rng"),
        stage("data.tokens", "data", kind="invariant"),
        stage("weights.head", "data", kind="invariant"),
        stage("layer0.qkv.fp32", "gemm", inputs=["data.tokens"]),
        stage("layer0.attention.fp32", "attention", inputs=["layer0.qkv.fp32"]),
        stage("layer0.mlp_in.codes.fp8", "quantize", [float(i % 7) for i in range(COUNT)], dtype="uint8"),
        stage("logits", "gemm", inputs=["layer0.attention.fp32", "weights.head"]),
        stage("kernel.softmax.fp32", "softmax"),
        stage("kernel.gemm.fp32", "gemm"),
        stage("kernel.gelu.fp32", "elementwise"),
        stage("kernel.scatter_add.fp32", "scatter"),
        stage("kernel.numpy_matmul.fp32", "gemm"),
        stage("metrics.digits.losses", "metric"),
    ]


def fingerprint(
    stages: list[dict[str, Any]] | None = None, metrics: list[dict[str, Any]] | None = None, **changes: Any
) -> Fingerprint:
    """A sealed fingerprint. `changes` set fields by path: `torch__num_threads=1`, `variables__OMP_NUM_THREADS="1"`."""
    stages = trace() if stages is None else stages
    logits = next((one["sha256"] for one in stages if one["name"] == "logits"), None)
    document = {
        **environment(),
        "document": "fingerprint",
        "schema_version": 1,
        "class_key": "cpu: Example CPU, AVX512_CORE, mode default",
        "probe": {
            "name": "lfq",
            "version": 1,
            "profile": "full",
            "device": "cpu",
            "mode": "default",
            "repeats": 3,
            "fresh": 1,
        },
        "seeds": {"base": 0, "metrics": SEEDS},
        "logit_hash": logits,
        "stages": stages,
        "metrics": [metric()] if metrics is None else metrics,
        "run": {
            "other_variables": {"count": 3, "sha256": sha("others"), "values": None},
            "detail": "private",
            "started": "2026-01-01T00:00:00Z",
            "seconds": 1.0,
            "parts": [],
        },
    }
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = document
        for part in parents:
            target = target[part]
        target[last] = value
    # what a key with a default says by being there is left out, as a probe leaves it out
    plain = msgspec.to_builtins(msgspec.convert({**document, "digest": sha("unsealed")}, Fingerprint))
    return msgspec.convert(canonical.sealed(canonical.tagged(plain)), Fingerprint)


def changed(name: str, **fields: Any) -> list[dict[str, Any]]:
    """The trace with one stage changed; `content` gives it other numbers."""
    return changed_all({name: fields})


def changed_all(changes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace with several stages changed."""
    result = []
    for one in trace():
        if one["name"] in changes:
            fields = changes[one["name"]]
            if "content" in fields:
                numbers = fields["content"]
                one |= {
                    "sketch": sketch(numbers),
                    "sha256": sha([str(x) for x in numbers]),
                    "shape": [len(numbers)],
                }
            one |= {key: value for key, value in fields.items() if key != "content"}
        result.append(one)
    return result


def moved(name: str, relative: float = 1e-7) -> list[dict[str, Any]]:
    """The trace with one stage's numbers moved by that relative distance."""
    return changed(name, content=jittered(numbers_of(name), relative))


def numbers_of(name: str) -> list[float]:
    """The numbers of a stage that has the ordinary ones."""
    return values(sum(name.encode()))
