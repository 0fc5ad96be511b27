"""How fast reprokit is, as ratios to peers that run beside it on the same machine: `make bench`.

Each benchmark runs its subject and its reference in turn (A B A B …) after one warm-up of both, so that what slows
the machine slows both, and divides the medians, or subtracts them where seconds are the goal. It prints a table and
writes benchmarks/results.json with every raw sample. A missed goal is said in words and fails nothing; a command that
does not work ends with exit code 1.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import reprokit

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results.json")
PYTHON = sys.executable
REPROKIT = str(Path(sys.executable).with_name("reprokit"))
MOST_MEMORY = 1_500_000_000  # bytes
NOTHING = (PYTHON, "-c", "pass")
IMPORT_TORCH = (PYTHON, "-c", "import torch")
COLLECT_ENV = (PYTHON, "-m", "torch.utils.collect_env")


class Missing(Exception):
    """What a benchmark needs and this machine has not; the message says what."""


class Broken(Exception):
    """A command of a benchmark does not work; the message says which and how."""


@dataclass(frozen=True)
class Benchmark:
    """One subject beside one reference; commands run in a temporary folder of the benchmark's own."""

    name: str
    subject: tuple[str, ...]
    reference: tuple[str, ...]
    unit: str
    goal: float  # the ratio of the medians, or their difference in seconds, is at most this
    rounds: int
    needs: tuple[str, ...] = ()  # modules without which it cannot run
    prepare: tuple[tuple[str, ...], ...] = ()  # commands that run once before
    also: Callable[[Path], tuple[bool, str]] = field(default=lambda folder: (True, ""))  # a further condition
    difference: bool = False
    setting: Callable[[Path], AbstractContextManager[None]] = nullcontext  # what must be there while it runs

    def missing(self) -> list[str]:
        """The modules that this machine lacks for it."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]

    def run(self) -> dict[str, Any]:
        """Measure; the result as an entry of results.json."""
        with tempfile.TemporaryDirectory() as name, self.setting(folder := Path(name)):
            for command in self.prepare:
                seconds(command, folder)
            samples: dict[str, list[float]] = {"subject": [], "reference": []}
            for turn in range(self.rounds + 1):
                pair = {
                    "subject": seconds(self.subject, folder),
                    "reference": seconds(self.reference, folder),
                }
                if turn:  # the first one warms up
                    for side, value in pair.items():
                        samples[side].append(round(value, 6))
            met, note = self.also(folder)
        medians = {side: statistics.median(values) for side, values in samples.items()}
        compared = operator.sub if self.difference else operator.truediv
        rounds = zip(samples["subject"], samples["reference"], strict=True)
        ratio = compared(medians["subject"], medians["reference"])
        return {
            "name": self.name,
            "ratio": round(ratio, 3),
            "unit": self.unit,
            "direction": "lower",
            "goal": self.goal,
            "holds": ratio <= self.goal and met,
            "note": note,
            "medians": medians,
            "seconds": samples,
            "samples": [round(compared(subject, reference), 3) for subject, reference in rounds],
        }

    def not_run(self, reason: str) -> dict[str, Any]:
        """The entry of a benchmark that this machine cannot run."""
        return {
            "name": self.name,
            "ratio": None,
            "unit": self.unit,
            "direction": "lower",
            "goal": self.goal,
            "holds": None,
            "note": f"cannot run here: {reason}",
            "medians": {},
            "seconds": {},
            "samples": [],
        }


def seconds(command: tuple[str, ...], folder: Path) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    run(command, folder)
    return time.perf_counter() - start


def run(command: tuple[str, ...], folder: Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise Broken(f"`{' '.join(command)}` ended with exit code {done.returncode} and said: {said}")
    return done.stdout


def twice_the_fields(folder: Path) -> tuple[bool, str]:
    """Whether `reprokit env` tells at least twice as many things as torch's collector."""
    document = json.loads(run((REPROKIT, "env", "--json"), folder))
    frame = ("absent", "digest", "document", "run", "schema_version")  # says nothing of the machine
    ours = sum(1 for key, value in document.items() if key not in frame for _ in leaves(value))
    theirs = collect_env_fields(run(COLLECT_ENV, folder))
    return ours >= 2 * theirs, f"{ours} fields against {theirs}, at least twice as many are the goal"


@contextmanager
def image_and_engine(folder: Path) -> Iterator[None]:
    """A container engine with a built image, and a configuration with a cell that runs in it.

    Raises:
        Missing: this machine has no engine and can start none.
    """
    sys.path.insert(0, str(ROOT))
    from tests.e2e import engine

    lock = ROOT / "docker" / "cpu.lock"
    try:
        with engine.engine(folder) as host, engine.registry(folder) as registry:
            os.environ["DOCKER_HOST"] = host
            image = {"base": engine.base_image(host, registry), "python": "3.11", "requirements": lock.name}
            image["wheels"] = "wheels"
            (folder / lock.name).write_bytes(lock.read_bytes())
            (folder / "wheels").symlink_to(engine.wheelhouse(lock))
            cells = [{"name": "cpu", "image": "ours"}]
            config = {"version": 1, "cells": cells, "images": {"ours": image}}
            (folder / "reprokit.yml").write_text(json.dumps(config))
            yield
    except engine.Missing as error:
        raise Missing(str(error)) from error


def installing(folder: Path) -> tuple[bool, str]:
    """What the action's own installation takes before it, once in every job."""
    took = seconds((PYTHON, str(ROOT / "bin" / "setup-venv"), str(folder / "venv")), folder)
    return True, f"before it, the action installs itself in {took:.1f} s"


def within_memory(folder: Path) -> tuple[bool, str]:
    """Whether all processes of a full probe together stay within their memory, shared pages counted once."""
    command = (REPROKIT, "probe", "--profile", "full", "-o", "full.json")
    most = 0
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as probe:
        while probe.poll() is None:
            most = max(most, sum(map(proportional_bytes, descendants(probe.pid))))
            time.sleep(0.02)
    if probe.returncode:
        raise Broken(f"`{' '.join(command)}` ended with exit code {probe.returncode}")
    return (
        most <= MOST_MEMORY,
        f"{most / 1e9:.2f} GB in all its processes, {MOST_MEMORY / 1e9:g} GB are the goal",
    )


def descendants(root: int) -> list[int]:
    """Ids of a process and of all that it started, which still run."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def proportional_bytes(process: int) -> int:
    """Memory of a process, each shared page divided by those who share it (Pss, Linux)."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def leaves(value: Any) -> Iterator[Any]:
    """Every value in a document that is not null."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def collect_env_fields(text: str) -> int:
    """Lines `key: value` that say something, and one for each listed package."""
    unknown = ("", "N/A", "Could not collect")
    pairs = [line.partition(":")[2].strip() for line in text.splitlines() if ":" in line]
    packages = [line for line in text.splitlines() if line.startswith(("[pip", "[conda]"))]
    return sum(value not in unknown for value in pairs) + len(packages)


MAKE_256_CELLS = """
from pathlib import Path
cell = "  - {name: c%03d, runs-on: [self-hosted, gpu], image: cuda-12.8, device: cuda, variables: {A: %d}}"
Path("reprokit.yml").write_text("\\n".join(["version: 1", "cells:", *(cell % (n, n) for n in range(256))]))
"""

BENCHMARKS = [
    Benchmark("version", (REPROKIT, "--version"), NOTHING, "× python -c pass", goal=8, rounds=25),
    Benchmark(
        "matrix",
        (REPROKIT, "matrix"),
        NOTHING,
        "× python -c pass",
        goal=20,
        rounds=25,
        prepare=((PYTHON, "-c", MAKE_256_CELLS),),
    ),
    Benchmark(
        "compare",
        (REPROKIT, "compare", "base.json", "head.json"),
        NOTHING,
        "× python -c pass",
        goal=15,
        rounds=25,
        needs=("torch", "numpy"),
        prepare=((REPROKIT, "probe", "-o", "base.json"), (REPROKIT, "probe", "-o", "head.json")),
    ),
    Benchmark(
        "env",
        (REPROKIT, "env", "--json"),
        COLLECT_ENV,
        "× torch.utils.collect_env",
        goal=0.9,
        rounds=7,
        needs=("torch", "numpy"),
        also=twice_the_fields,
    ),
    Benchmark(
        "probe-quick",
        (REPROKIT, "probe", "--profile", "quick", "-o", "quick.json"),
        IMPORT_TORCH,
        "× import torch",
        goal=3,
        rounds=7,
        needs=("torch", "numpy"),
    ),
    Benchmark(
        "probe-full",
        (REPROKIT, "probe", "--profile", "full", "-o", "full.json"),
        IMPORT_TORCH,
        "× import torch",
        goal=12,
        rounds=5,
        needs=("torch", "numpy"),
        also=within_memory,
    ),
    Benchmark(
        "action",
        (REPROKIT, "ci", "--cell", "cpu"),
        (PYTHON, "-m", "reprokit.probe"),
        "s over the bare probe",
        goal=5,
        rounds=5,
        needs=("torch", "numpy"),
        prepare=(
            ("bash", "-c", f"{REPROKIT} ci --cell cpu || test $? = 5"),
            (REPROKIT, "baseline", "approve", ".reprokit/runs/cpu/fingerprint.json", "--cell", "cpu"),
        ),
        also=installing,
        difference=True,
        setting=image_and_engine,
    ),
]


def main() -> int:
    """Run the benchmarks; returns the exit code."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__)
    parser.add_argument("--only", metavar="NAME", choices=names, help=f"one of {', '.join(names)}")
    only = parser.parse_args().only

    # an installed package has its bytecode; this one is editable, and whoever runs it may not write any
    compileall.compile_dir(Path(reprokit.__file__).parent, quiet=1)
    results, broken = [], False
    print(f"{'benchmark':<14} {'ratio':>8} {'goal':>7}  {'unit':<28} result")
    for benchmark in BENCHMARKS:
        if only in (None, benchmark.name):
            try:
                lacks = " and ".join(benchmark.missing())
                result = benchmark.not_run(f"no {lacks}") if lacks else benchmark.run()
            except Missing as error:
                result = benchmark.not_run(str(error))
            except Broken as error:
                result, broken = benchmark.not_run(str(error)), True
            results.append(result)
            print(row(result), flush=True)
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    print(f"\nevery sample: {RESULTS.relative_to(RESULTS.parents[1])}")
    return int(broken)


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    ratio = "–" if result["ratio"] is None else f"{result['ratio']:.2f}"
    words = {True: "holds", False: "does not hold", None: ""}[result["holds"]]
    said = ": ".join(filter(None, (words, result["note"])))
    return f"{result['name']:<14} {ratio:>8} {'≤ ' + format(result['goal'], 'g'):>7}  {result['unit']:<28} {said}"


if __name__ == "__main__":
    sys.exit(main())
