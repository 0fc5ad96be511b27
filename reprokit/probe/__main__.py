"""`python -m reprokit.probe`: run the probe in this interpreter and write its fingerprint to standard output.

A second, fresh process starts first and imports torch while this one does; it runs every stage once and reports
hashes. The recording one runs every stage twice, and once more while other work keeps the other cores busy. On a GPU a
third one, under a profiler, reports the names of the kernels. Progress
goes to standard error, one line a part. Exit code 3: this machine could not run the probe.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from reprokit import launch, seeding
from reprokit.model import canonical

if TYPE_CHECKING:
    from reprokit.probe.lfq.parts import Part
    from reprokit.probe.recorder import Recorder

REPEATS, LOADED = 2, 1  # runs in the recording process: of its own, and under load


class CannotRun(Exception):
    """This interpreter or machine cannot run the probe; the message says why in one line."""


def main() -> NoReturn:
    """Run as the recording process or, with `--hashes` or `--kernels`, as one of those beside it."""
    options = _parse()
    if options.mode == "strict":
        _with_variables(seeding.variables(options.seed))
    launch.end_with_parent()
    # ended kindly, it takes its processes and temporary folders along; 128 and the signal, as a shell says it
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    output = launch.claim_output()
    try:
        work = (
            _listed
            if options.list
            else _hashes
            if options.hashes
            else _kernels
            if options.kernels
            else _fingerprint
        )
        document = work(options)
        launch.hand_over(output, canonical.encode(document), options.output)
    except CannotRun as error:
        sys.exit(_fail(str(error)))
    except Exception as error:  # one line for the user; the traceback for whoever reads the log
        traceback.print_exc()
        sys.exit(_fail(f"{type(error).__name__}: {error}"))


def _with_variables(wanted: dict[str, str]) -> None:
    """Start this interpreter over where it lacks a variable that is only read at its start."""
    missing = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reprokit.probe", description=__doc__)
    parser.add_argument("--profile", choices=("quick", "full"), default="full")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", choices=("default", "strict"), default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--detail", choices=("private", "full"), default="private")
    parser.add_argument(
        "--told", type=json.loads, metavar="JSON", help="image, commit and dirty, where known"
    )
    parser.add_argument("--output", metavar="FILE", help="write the document there, not to standard output")
    parser.add_argument(
        "--list", action="store_true", help="tell what there is to measure, and measure nothing"
    )
    parser.add_argument("--hashes", action="store_true", help="run once and print hashes alone")
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="run kernel.* under a profiler, print names of GPU kernels alone",
    )
    return parser.parse_args()


def _fail(message: str) -> int:
    print(f"reprokit.probe: {message}", file=sys.stderr)
    return 3


def _fingerprint(options: argparse.Namespace) -> dict[str, Any]:
    started, clock = datetime.now(timezone.utc), time.perf_counter()
    fresh = _fresh_process(options)
    try:
        device = _device(options)
        # the ranks of the part `collective` compute its turns beside everything else, the fresh one in a second launch
        with _parts(options, device, turns=(REPEATS + LOADED, 1)) as chosen:
            recorder, seconds = _recorded(options, device, chosen)
            _say("environment")
            environment = _environment(options)
            _say("fresh process")
            recorder.add_fresh(_collect(fresh) | _fresh_launch(chosen))
    finally:
        fresh.kill()
        fresh.wait()
    if options.device == "cuda":
        _say("kernel names")
        recorder.add_kernels(_kernel_names(options))
    cost = _mode_cost(device) if options.mode == "strict" else None
    stages = recorder.trace()
    document = environment | {
        "document": "fingerprint",
        "schema_version": 1,
        "class_key": _class_key(environment, options),
        "probe": _probe(options),
        "seeds": _seeds(options.seed),
        "stages": stages,
        "logit_hash": next(stage["sha256"] for stage in stages if stage["name"] == "logits"),
        "metrics": _metrics(recorder),
        "run": _run(options.detail, started, time.perf_counter() - clock, seconds) | {"mode_cost": cost},
    }
    return canonical.sealed(document)


def _recorded(
    options: argparse.Namespace, device: Any, chosen: dict[str, Part]
) -> tuple[Recorder, dict[str, float]]:
    """Every part recorded and repeated, and the seconds that each one took."""
    from reprokit.probe import load, recorder

    record, seconds = recorder.Recorder(), dict.fromkeys(chosen, 0.0)
    # under load, environment, fresh process and, on a GPU, kernel names
    _say(f"{len(chosen) + (4 if options.device == 'cuda' else 3)} steps")
    for name, part in chosen.items():
        _say(name)
        with _timed(seconds, name):
            record.run(part())
            for _ in range(REPEATS - 1):
                record.repeat(part())
    _say("under load")
    with load.busy(device):
        for name, part in chosen.items():
            with _timed(seconds, name):
                for _ in range(LOADED):
                    record.repeat(part(), recorder.LOADED)
    return record, seconds


@contextmanager
def _parts(
    options: argparse.Namespace, device: Any, turns: tuple[int, ...] = ()
) -> Iterator[dict[str, Part]]:
    """The parts that were asked for; without `turns` of its ranks, all but `collective`, and so in profile quick."""
    from reprokit.probe.lfq import collective
    from reprokit.probe.lfq.parts import parts

    if options.profile == "quick" or not turns:  # a launcher and two ranks cost more than all of quick
        yield parts(device, options.profile, options.seed)
        return
    with closing(collective.Ranks(device, options.seed, options.mode, turns)) as ranks:
        if not options.list:
            ranks.start()
        yield parts(device, options.profile, options.seed, ranks)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[name] += time.perf_counter() - begin


def _fresh_process(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    return subprocess.Popen(_again(options, "--hashes"), stdout=subprocess.PIPE)


def _again(options: argparse.Namespace, only: str) -> list[str]:
    """The command line of this probe once more, for hashes or names alone."""
    chosen = ("profile", "device", "mode", "seed")
    arguments = [word for name in chosen for word in (f"--{name}", str(getattr(options, name)))]
    return launch.command("reprokit.probe", *arguments, only)


def _kernel_names(options: argparse.Namespace) -> dict[str, list[str]]:
    """What a process of its own, which ends with this one, sees of the GPU's kernels."""
    done = subprocess.run(_again(options, "--kernels"), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise CannotRun(f"the process for the names of kernels ended with exit code {done.returncode}")
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def _kernels(options: argparse.Namespace) -> dict[str, list[str]]:
    """Names of the GPU kernels of each stage `kernel.*`; none on a CPU."""
    device = _device(options)
    if device.type != "cuda":
        return {}
    from reprokit.probe import kernel_names
    from reprokit.probe.lfq.parts import parts

    return kernel_names.names(parts(device, options.profile, options.seed)["kernel"]())


def _collect(fresh: subprocess.Popen[bytes]) -> dict[str, str]:
    output, _ = fresh.communicate()
    if fresh.returncode:
        raise CannotRun(f"the fresh process ended with exit code {fresh.returncode}")
    hashes: dict[str, str] = json.loads(output)
    return hashes


def _fresh_launch(chosen: dict[str, Part]) -> dict[str, str]:
    """Hashes of the ranks' next turn, where there are ranks."""
    from reprokit.probe.recorder import hashes

    return hashes(chosen["collective"]()) if "collective" in chosen else {}


def _hashes(options: argparse.Namespace) -> dict[str, str]:
    device = _device(options)
    from reprokit.probe.recorder import hashes

    with _parts(options, device) as chosen:
        return hashes(stage for part in chosen.values() for stage in part())


def _listed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is known of every stage before it runs."""
    device = _device(options)
    from reprokit.probe.lfq.about import about

    with _parts(options, device, turns=(1,)) as chosen:
        return [
            {
                "part": name,
                "name": stage.name,
                "kind": "invariant" if stage.invariant else "sensitive",
                "operator": stage.operator,
                "version": stage.version,
                "control": None if stage.control is None else stage.control.change,
                "races": stage.races,
                "about": about(stage.name),
            }
            for name, part in chosen.items()
            for stage in part()
        ]


def _device(options: argparse.Namespace) -> Any:
    """The device, with torch imported and in the mode that was asked for."""
    torch = _import_torch()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise CannotRun("--device cuda: torch finds no usable GPU in this process")
    if options.mode == "strict":
        seeding.seed_everything(options.seed)
    return torch.device(options.device)


def _import_torch() -> Any:
    # threads that spin at barriers stall for seconds when other work holds their core; sleeping moves no number
    chosen = "OMP_WAIT_POLICY" in os.environ
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import numpy  # noqa: F401
        import torch
    except ModuleNotFoundError as error:
        advice = (
            "let `python:` of the cell name an interpreter that has them"
            if launch.own_side()
            else "install reprokit-ci[probe], or install reprokit beside the torch that you use"
        )
        raise CannotRun(
            f"{sys.executable} has no {error.name}; the probe needs torch and numpy: {advice}"
        ) from error
    except ImportError as error:
        raise CannotRun(f"{sys.executable} cannot import torch and numpy: {error}") from error
    if not chosen:  # OpenMP has read it; what the fingerprint calls requested stays what the user set
        del os.environ["OMP_WAIT_POLICY"]
    return torch


def _environment(options: argparse.Namespace) -> dict[str, Any]:
    from reprokit.environment import collect

    return collect(options.detail, options.told)


def _probe(options: argparse.Namespace) -> dict[str, Any]:
    from reprokit.probe import lfq

    return {
        "name": lfq.NAME,
        "version": lfq.VERSION,
        "profile": options.profile,
        "device": options.device,
        "mode": options.mode,
        "repeats": REPEATS,
        "loaded": LOADED,
        "fresh": 1,
    }


def _class_key(environment: dict[str, Any], options: argparse.Namespace) -> str:
    """What the hardware was measured to be: never labels, driver or image, which are environment fields."""
    if options.device == "cuda":
        import torch

        gpu = torch.cuda.get_device_properties(0)  # of a MIG slice, the name says so and the SMs are its own
        return f"cuda: {gpu.name}, {gpu.multi_processor_count} SMs, mode {options.mode}"
    cpu = environment["cpu"]
    model = cpu["model"] or (
        cpu["vendor"] and cpu["model_number"] and f"{cpu['vendor']} part {cpu['model_number']:#x}"
    )
    if not model:  # servers with Arm cores state no name; without any, unlike machines would share a class
        raise CannotRun(
            "the kernel tells neither name nor part number of this CPU: it has no class of hardware"
        )
    return f"cpu: {model}, {cpu['isa']}, mode {options.mode}"


def _seeds(base: int) -> dict[str, Any]:
    from reprokit.probe.lfq import metrics

    return {"base": base, "metrics": metrics.seeds(base)}


def _metrics(recorder: Any) -> list[dict[str, Any]]:
    import torch

    from reprokit.probe.lfq import metrics

    record = recorder.records["metrics.digits.evaluation"]
    return metrics.summarised(
        torch.tensor(record["sketch"]["samples"], dtype=torch.float64).reshape(record["shape"])
    )


def _run(detail: str, started: datetime, seconds: float, parts: dict[str, float]) -> dict[str, Any]:
    from reprokit.environment import other_variables

    return {
        "detail": detail,
        "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": seconds,
        "parts": [{"name": name, "seconds": value} for name, value in parts.items()],
        "peak_memory_bytes": _peak_memory(),
        "other_variables": other_variables(detail),
    }


def _mode_cost(device: Any) -> dict[str, float]:
    """What mode strict costs, once everything is recorded and no other process of the probe is left."""
    from reprokit.probe import mode_cost

    return mode_cost.measured(device)


def _peak_memory() -> int:
    """The most memory that this process ever had in use, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _say(part: str) -> None:
    print(f"reprokit.probe: {part}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
