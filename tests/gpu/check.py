#!/usr/bin/env python3
"""Everything about the probe that only a GPU can show, in one run of under ten minutes.

    python tests/gpu/check.py                                     all of it, on the first GPU
    python tests/gpu/check.py --device cpu --profile quick        a rehearsal of the script, without a GPU
    python tests/gpu/check.py --minutes 5 --output /tmp/h100      fewer variants where time is short

It needs this checkout, torch and numpy. It writes report.md, report.json and the fingerprint of every run to a
folder, and changes no setting of the machine.

What is asserted, and so decides the exit code (0 all held, 1 something did not, 2 usage):
  - the probe runs in both modes, twice, and the two digests of each mode are equal
  - no known answer is missed, no error bound is broken
  - the GPU counts no more uncorrected memory errors than before

What is only reported: which stages each setting moves (TF32 forced on and off, another cuBLAS workspace, a part of
the SMs), what each attention kernel gives against the one that torch picks, stages that are unstable, blind or
unavailable, the names of the GPU kernels, and the times. On a CPU the settings are ATEN_CPU_CAPABILITY,
OMP_NUM_THREADS and MKL_CBWR.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODES = ("default", "strict")
LONGEST = 240  # seconds for one run of the probe
Document = dict[str, Any]
VARIANTS = {
    "cuda": (
        {"NVIDIA_TF32_OVERRIDE": "1"},
        {"NVIDIA_TF32_OVERRIDE": "0"},
        {"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
    ),
    "cpu": (
        {"ATEN_CPU_CAPABILITY": "default"},
        {"OMP_NUM_THREADS": "1"},
        {"MKL_CBWR": "COMPATIBLE"},
    ),
}
SHARE_OF_SMS = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
MEMORY_ERRORS = "ecc.errors.uncorrected.volatile.total"
COUNTERS = (
    MEMORY_ERRORS,
    "ecc.errors.corrected.volatile.total",
    "clocks_throttle_reasons.active",
    "temperature.gpu",
)


@dataclass
class Check:
    """Something that must hold, and what was seen."""

    what: str
    held: bool
    seen: str


@dataclass
class Run:
    """One run of the probe; `document` is None where it failed, for the reason in `failure`."""

    name: str
    seconds: float
    document: Document | None
    failure: str | None = None

    def stages(self) -> dict[str, Document]:
        return {} if self.document is None else {stage["name"]: stage for stage in self.document["stages"]}


@dataclass
class Variant:
    """What one setting moved: for each operator class of the kernels, how many of how many; or why it was not tried."""

    variables: dict[str, str]
    not_tried: str | None = None
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)


class Checker:
    """The runs of one check and what came of them."""

    def __init__(self, device: str, profile: str, folder: Path, minutes: float) -> None:
        self.device, self.profile, self.folder = device, profile, folder
        self.end = time.monotonic() + 60 * minutes
        self.runs: list[Run] = []
        self.checks: list[Check] = []
        self.variants: list[Variant] = []

    def probe(self, name: str, mode: str = "default", **variables: str) -> Run:
        """A fingerprint of this machine with `variables` set, kept in the folder as NAME.json."""
        path = self.folder / f"{name}.json"
        # the command validates what it writes, where its dependencies are installed; the probe itself needs none
        command = all(importlib.util.find_spec(module) for module in ("click", "msgspec"))
        module = ["reprokit", "probe"] if command else ["reprokit.probe"]
        options = ["--profile", self.profile, "--device", self.device, "--mode", mode, "--output", str(path)]
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        print(f"check: {name}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        run = Run(name, 0.0, None)
        try:
            done = subprocess.run(
                [sys.executable, "-m", *module, *options],
                env={**os.environ, "PYTHONPATH": search, **variables},
                capture_output=True,
                text=True,
                check=False,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            run.failure = f"did not end within {LONGEST} seconds"
        else:
            last = (done.stderr.strip() or "nothing on standard error").splitlines()[-1]
            if done.returncode == 0:
                run.document = json.loads(path.read_text())
            else:
                run.failure = f"exit code {done.returncode}: {last}"
        run.seconds = time.monotonic() - begin
        self.runs.append(run)
        return run

    def equalities(self) -> Run:
        """The probe twice in each mode; returns the first run, which everything else is held against."""
        for mode in MODES:
            pair = [self.probe(f"{mode}-{turn}", mode) for turn in (1, 2)]
            failed = [f"{run.name}: {run.failure}" for run in pair if run.failure]
            seen = "; ".join(failed) or _difference(*pair)
            self.checks.append(Check(f"two runs in mode {mode} give one digest", seen == "", seen or "equal"))
        return self.runs[0]

    def vary(self, base: Run) -> None:
        """Each setting in a run of its own, and a part of the SMs where that can be had."""
        for variables in VARIANTS[self.device]:
            self._vary(base, variables)
        if self.device == "cpu":
            self.variants.append(Variant(SHARE_OF_SMS, "a CPU has no SMs"))
            return
        with _mps() as (where, reason):
            if reason:
                self.variants.append(Variant(SHARE_OF_SMS, reason))
            else:
                self._vary(base, SHARE_OF_SMS, where)

    def _vary(self, base: Run, variables: dict[str, str], where: dict[str, str] | None = None) -> None:
        variant = Variant(variables)
        self.variants.append(variant)
        longest = max(run.seconds for run in self.runs)
        if time.monotonic() + longest > self.end:
            variant.not_tried = "no time was left"
            return
        (name, value), *_ = variables.items()
        run = self.probe(f"{name}={value}".replace(":", "_"), **variables, **(where or {}))
        if run.failure or base.failure:
            variant.not_tried = run.failure or f"{base.name} failed"
            return
        before, after = base.stages(), run.stages()
        names = [name for name in after if name.startswith("kernel.") and name in before]
        kernels = [after[name] for name in names if after[name]["sha256"]]
        moved = [stage for stage in kernels if stage["sha256"] != before[stage["name"]]["sha256"]]
        classes, of_them = (Counter(stage["operator"] for stage in stages) for stages in (kernels, moved))
        variant.moved = {operator: (of_them[operator], classes[operator]) for operator in sorted(classes)}
        variant.stages = [stage["name"] for stage in moved]

    def faults(self, before: list[Document], after: list[Document]) -> None:
        """Known answers and bounds over all runs, and what the GPU counts."""
        missed, broken = [], []
        for run in self.runs:
            for name, stage in run.stages().items():
                if stage["expected"] is not None and stage["sha256"] not in (None, stage["expected"]):
                    missed.append(f"{name} in {run.name}")
                if stage["bound"] is not None and not stage["bound"]["holds"]:
                    broken.append(f"{name} in {run.name}: {stage['bound']['ratio']} times")
        self.checks.append(Check("every known answer is given", not missed, "; ".join(missed) or "all"))
        self.checks.append(Check("every error bound is kept", not broken, "; ".join(broken) or "all"))
        if self.device == "cuda":
            grown = before != after and [
                f"GPU {index}: {old[MEMORY_ERRORS]} before, {new[MEMORY_ERRORS]} after"
                for index, (old, new) in enumerate(zip(before, after, strict=True))
                if old[MEMORY_ERRORS] != new[MEMORY_ERRORS]
            ]
            seen = "; ".join(grown) if grown else "none" if before else "not asked: no nvidia-smi"
            self.checks.append(Check("no uncorrected memory error came up", not grown, seen))


def _difference(one: Run, two: Run) -> str:
    """Which sections and stages of two documents differ; empty where their digests are equal."""
    assert one.document is not None and two.document is not None
    if one.document["digest"] == two.document["digest"]:
        return ""
    outside = ("run", "digest", "stages")  # a digest covers no `run`
    sections = [
        key for key in one.document if key not in outside and one.document[key] != two.document.get(key)
    ]
    before, after = one.stages(), two.stages()
    stages = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f"digests differ; sections: {', '.join(sections) or 'none'}; stages: {', '.join(stages) or 'none'}"


@contextmanager
def _mps() -> Iterator[tuple[dict[str, str], str | None]]:
    """NVIDIA's multi-process service for the block: the variables that lead to it, or why there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield {}, "there is no nvidia-cuda-mps-control here"
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        where = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **where}
        started = subprocess.run(
            [control, "-d"], env=environment, capture_output=True, text=True, check=False
        )
        if started.returncode:
            told = (started.stderr or started.stdout).strip().splitlines()
            yield (
                {},
                f"the MPS daemon did not start: {told[-1] if told else f'exit code {started.returncode}'}",
            )
            return
        try:
            yield where, None
        finally:
            subprocess.run([control], input="quit\n", env=environment, text=True, check=False, timeout=60)


def counters(device: str) -> list[Document]:
    """What nvidia-smi counts of each GPU; empty without it."""
    program = shutil.which("nvidia-smi") if device == "cuda" else None
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(COUNTERS)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.split(", ") for line in done.stdout.splitlines() if line] if done.returncode == 0 else []
    return [dict(zip(COUNTERS, row, strict=True)) for row in rows]


def attention(base: Run) -> list[Document]:
    """Each attention kernel by name: whether it gives what the one that torch picks gives, or why it is not there."""
    stages = base.stages()
    found = []
    for name, stage in stages.items():
        group, _, rest = name.partition("attention.")
        backend, _, dtype = rest.rpartition(".")
        picked = stages.get(f"{group}attention.default.{dtype}")
        if group in ("kernel.", "kernel.grouped_") and picked is not None and backend != "default":
            equal = stage["sha256"] == picked["sha256"] if stage["sha256"] else None
            found.append({"stage": name, "equals_default": equal, "reason": stage["reason"]})
    return found


def summary(checker: Checker, base: Run, before: list[Document], after: list[Document]) -> Document:
    """Everything that report.md shows, as plain data."""
    stages = base.stages()
    document = base.document or {}
    states = ("unstable", "blind", "unavailable")
    return {
        "device": checker.device,
        "profile": checker.profile,
        "class_key": document.get("class_key"),
        "held": all(check.held for check in checker.checks),
        "checks": [asdict(check) for check in checker.checks],
        "variants": [asdict(variant) for variant in checker.variants],
        "attention": {
            "chosen": ((document.get("torch") or {}).get("attention") or {}).get("chosen"),
            "kernels": attention(base),
        },
        "states": {
            state: {
                name: " ".join(
                    filter(None, (stage["reason"], stage.get("races") and f"({stage['races']} races)"))
                )
                for name, stage in stages.items()
                if stage["state"] == state
            }
            for state in states
        },
        "kernels": {name: stage["kernels"] for name, stage in stages.items() if stage.get("kernels")},
        "times": {run.name: _times(run) for run in checker.runs},
        "counters": {"before": before, "after": after},
    }


def _times(run: Run) -> Document:
    parts = run.document["run"]["parts"] if run.document else []
    return {
        "wall": round(run.seconds, 2),
        "failure": run.failure,
        "parts": {part["name"]: round(part["seconds"], 3) for part in parts},
    }


def markdown(report: Document) -> str:
    """The report for reading."""
    lines = [f"# Check of the probe on {report['class_key'] or report['device']}", ""]
    lines += [f"Profile {report['profile']}. {'All held.' if report['held'] else '**Not all held.**'}", ""]
    lines += _table(
        ("held", "what", "seen"),
        [("yes" if check["held"] else "**no**", check["what"], check["seen"]) for check in report["checks"]],
    )
    lines += [
        "## What each setting moves",
        "",
        "Kernels whose hash moved, of those that ran, by operator class.",
        "",
    ]
    lines += _table(
        ("setting", "moved"),
        [
            (
                " ".join(f"`{name}={value}`" for name, value in variant["variables"].items()),
                f"not tried: {variant['not_tried']}"
                if variant["not_tried"]
                else ", ".join(
                    f"{key} {some} of {all_}" for key, (some, all_) in variant["moved"].items() if some
                )
                or "nothing",
            )
            for variant in report["variants"]
        ],
    )
    lines += ["## Attention", "", f"torch picks: {report['attention']['chosen'] or 'not told'}", ""]
    said = {True: "equal", False: "differs", None: "not there"}
    lines += _table(
        ("kernel", "against the one that torch picks", "reason"),
        [
            (f"`{row['stage']}`", said[row["equals_default"]], row["reason"] or "")
            for row in report["attention"]["kernels"]
        ],
    )
    for state, stages in report["states"].items():
        lines += [f"## Stages that are {state}: {len(stages)}", ""]
        lines += _table(("stage", "reason"), [(f"`{name}`", reason) for name, reason in stages.items()])
    lines += [f"## GPU kernels behind {len(report['kernels'])} stages", ""]
    lines += _table(
        ("stage", "kernels"),
        [
            (f"`{name}`", " ".join(f"`{kernel[:80]}`" for kernel in kernels))
            for name, kernels in report["kernels"].items()
        ],
    )
    parts = list(dict.fromkeys(part for times in report["times"].values() for part in times["parts"]))
    lines += ["## Seconds", ""]
    lines += _table(
        ("run", "wall", *parts),
        [
            (name, str(times["wall"]), *(str(times["parts"].get(part, "")) for part in parts))
            for name, times in report["times"].items()
        ],
    )
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return ["None.", ""]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    cells.insert(1, ["---"] * len(head))
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


def main(arguments: list[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--profile", choices=("quick", "full"), default="full", help="default: full")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="after which no other variant is begun; default: 9"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build/gpu", metavar="FOLDER", help="default: build/gpu"
    )
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    checker = Checker(options.device, options.profile, options.output, options.minutes)
    before = counters(options.device)
    base = checker.equalities()
    checker.vary(base)
    after = counters(options.device)
    checker.faults(before, after)
    report = summary(checker, base, before, after)
    (options.output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.output / "report.md").write_text(markdown(report))
    for check in checker.checks:
        print(f"{'held' if check.held else 'NOT HELD'}: {check.what}: {check.seen}")
    print(f"report: {options.output / 'report.md'}")
    return 0 if report["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
