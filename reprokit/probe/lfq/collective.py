"""`collective.*`: the same global batch on one rank and on two, and all-reduce by itself.

Two ranks run under one torchrun beside the probe: gloo on a CPU, NCCL on two GPUs. Rank 0 also computes the whole
batch alone. Nothing leaves the machine: all addresses are 127.0.0.1, so a container without network will do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch

from reprokit import launch, seeding
from reprokit.probe import exact
from reprokit.probe.lfq import training
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Control, Stage, Twin, Unavailable

WORLD = 2
ELEMENTS = 100_003
BUCKETS = (1024, 65536)  # elements that are reduced at once
PATIENCE_SECONDS = 300
ALL_ULP = "every input of one rank moved by one ulp"
Arrays = dict[str, np.ndarray]
_OF_A_LAUNCHER = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "PET_")
_LAUNCHER = "REPROKIT_LAUNCHER"  # tells the ranks the process id of theirs


class Ranks:
    """Launches of two ranks, one after the other, each of which computes everything a number of times.

    `turns` says how often, for each launch. The first one starts by `start`, or when it is asked for; each further
    one beside whatever else there is to do, once the results of the one before were taken.
    """

    def __init__(self, device: torch.device, seed: int, mode: str, turns: tuple[int, ...]) -> None:
        self._arguments = ["--device", device.type, "--seed", str(seed), "--mode", mode]
        self._device, self._turns = device, turns
        self._arrays: list[Arrays] = []  # of each launch that has ended
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the next launch, if this machine can have two ranks and there is one left that does not run."""
        place = len(self._arrays)
        if self._process is not None or place == len(self._turns) or _missing(self._device) is not None:
            return
        self._folder = tempfile.TemporaryDirectory()
        arguments = [*self._arguments, "--turns", str(self._turns[place]), "--output", str(self._output)]
        self._process = subprocess.Popen(
            _command(arguments),
            cwd=self._folder.name,
            env=_environment(self._folder.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def result(self, name: str, turn: int = 0) -> np.ndarray:
        """One of their arrays in one of all turns.

        Raises:
            Unavailable: this machine cannot have two ranks, or they failed.
        """
        for place, turns in enumerate(self._turns):
            if turn < turns:
                return self._of(place)[f"{turn}.{name}"]
            turn -= turns
        raise ValueError(f"the ranks compute {sum(self._turns)} turns, and more are asked for")

    def control(self, name: str) -> np.ndarray:
        """One of the arrays of the first launch under what must change them; raises as `result`."""
        return self._of(0)[f"control.{name}"]

    def close(self) -> None:
        """End them, wherever they are."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _output(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, "ranks.npz")

    def _of(self, place: int) -> Arrays:
        while len(self._arrays) <= place:
            self._arrays.append(self._collected())
            self.close()
            self.start()
        return self._arrays[place]

    def _collected(self) -> Arrays:
        if (missing := _missing(self._device)) is not None:
            raise Unavailable(missing)
        self.start()
        assert self._process is not None
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"two ranks did not end within {PATIENCE_SECONDS} s") from None
        if code:
            raise Unavailable(f"torchrun with two ranks ended with exit code {code}: the log says why")
        with np.load(self._output) as stored:
            return dict(stored)


def collective_stages(ranks: Ranks, turn: int) -> Iterator[Stage]:
    """What the ranks found in one turn; the controls are those of the first."""

    def result(name: str) -> np.ndarray:
        return ranks.result(name, turn)

    yield known("collective.ranks", "data", lambda: result("ranks"))
    for bucket in BUCKETS:
        yield known(
            f"collective.known.{bucket}", "collective", lambda bucket=bucket: result(f"known.{bucket}")
        )
    for bucket in BUCKETS:
        yield Stage(
            f"collective.all_reduce.{bucket}",
            "collective",
            lambda bucket=bucket: result(f"all_reduce.{bucket}"),
            control=Control(ALL_ULP, lambda bucket=bucket: ranks.control(f"all_reduce.{bucket}")),
            twin=None
            if bucket == BUCKETS[0]
            else Twin(f"collective.all_reduce.{BUCKETS[0]}", lambda: result(f"all_reduce.{BUCKETS[0]}")),
        )
    for name, twin in (("one_rank", None), ("two_ranks", "one_rank")):
        yield Stage(
            f"collective.gradients.{name}",
            "metric" if twin is None else "collective",
            lambda name=name: result(name),
            inputs=() if twin is None else (f"collective.gradients.{twin}",),
            control=Control(training.REVERSED, lambda name=name: ranks.control(name)),
            twin=None
            if twin is None
            else Twin(f"collective.gradients.{twin}", lambda twin=twin: result(twin)),
        )


def _command(arguments: list[str]) -> list[str]:
    """The launcher, which runs this module once more as each of the ranks."""
    return launch.command("reprokit.probe.lfq.collective", *arguments)


def _missing(device: torch.device) -> str | None:
    """Why this machine cannot have two ranks, or None."""
    distributed = torch.distributed
    if not distributed.is_available():
        return "this torch is built without torch.distributed"
    if device.type == "cpu":
        return None if distributed.is_gloo_available() else "this torch is built without gloo"
    if not distributed.is_nccl_available():
        return "this torch is built without NCCL"
    if torch.cuda.device_count() < WORLD:
        return f"NCCL takes {WORLD} GPUs for {WORLD} ranks, and this process sees {torch.cuda.device_count()}"
    return None


def _environment(folder: str) -> dict[str, str]:
    """That of the launcher: where it finds this package, the loopback as the only network, and `folder` for its files.

    torchrun never removes the folder of its logs.
    """
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    defaults = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    no_traces = {"PYTHONDONTWRITEBYTECODE": "1"} if launch.own_side() else {}
    # what another launcher set for a job that this one is part of is not meant for these ranks
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_LAUNCHER)}
    return {**defaults, **inherited, **no_traces, "PYTHONPATH": path, "TMPDIR": folder}


def averaged(gradients: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over all ranks, reduced in place."""
    torch.distributed.all_reduce(gradients)
    return gradients.div_(torch.distributed.get_world_size())


def in_buckets(values: torch.Tensor, size: int) -> torch.Tensor:
    """The sum of a vector over all ranks, `size` elements at once, in place."""
    for bucket in values.split(size):
        torch.distributed.all_reduce(bucket)
    return values


def _one_turn(device: torch.device, reverse: bool = False) -> dict[str, torch.Tensor]:
    """Everything that this rank computes; what all ranks share is the same on each."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    weights = training.raw(device)
    tokens, successors = training.batch(device, 0)
    gradients = partial(
        training.loss_and_gradients, partial(training.Trained, training.CONFIG, reverse=reverse), weights
    )
    share = (tokens.chunk(world)[rank], successors.chunk(world)[rank])
    rows = [torch.zeros(3, dtype=torch.int64, device=device) for _ in range(world)]
    torch.distributed.all_gather(rows, torch.tensor([rank, world, len(share[0])], device=device))
    integers = exact.below(1000, (ELEMENTS,), f"collective.known.{rank}").float().to(device)
    vector = exact.bell((ELEMENTS,), f"collective.vector.{rank}").to(device)
    if reverse and rank == 0:
        vector = torch.nextafter(vector, torch.full_like(vector, torch.inf))
    return {
        "ranks": torch.stack(rows),
        **{f"known.{size}": in_buckets(integers.clone(), size) for size in BUCKETS},
        **{f"all_reduce.{size}": in_buckets(vector.clone(), size) for size in BUCKETS},
        "one_rank": training.flat(gradients(tokens, successors)[1]),
        "two_ranks": averaged(training.flat(gradients(*share)[1])),
    }


def _rank(options: argparse.Namespace) -> None:
    """Be one of the ranks; the first writes what was found."""
    launch.end_with_parent()
    if os.getppid() != int(os.environ[_LAUNCHER]):  # it ended while this one imported torch
        return
    place = int(os.environ["LOCAL_RANK"])
    device = torch.device(options.device, place) if options.device == "cuda" else torch.device("cpu")
    if options.mode == "strict":
        seeding.seed_everything(options.seed)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.exp(torch.ones(1))  # as the probe does: MKL chooses its kernels in one thread
    backend = "nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=PATIENCE_SECONDS))
    found = {f"{turn}": _one_turn(device) for turn in range(options.turns)}
    found["control"] = _one_turn(device, reverse=True)
    if torch.distributed.get_rank() == 0:
        arrays = {
            f"{turn}.{name}": value.cpu().numpy()
            for turn, one in found.items()
            for name, value in one.items()
        }
        np.savez(options.output, **arrays)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Launch the ranks, or be one of them: torchrun runs this module too, and tells a rank its place."""
    parser = argparse.ArgumentParser(prog="python -m reprokit.probe.lfq.collective", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mode", choices=("default", "strict"), required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    if _LAUNCHER in os.environ:
        _rank(options)
        return
    launch.end_with_parent()
    os.environ[_LAUNCHER] = str(os.getpid())
    from torch.distributed.run import main as torchrun

    here = ["--nnodes", "1", "--nproc-per-node", str(WORLD), "--standalone", "--local-addr", "127.0.0.1"]
    torchrun([*here, "--module", "reprokit.probe.lfq.collective", *sys.argv[1:]])


if __name__ == "__main__":
    main()
