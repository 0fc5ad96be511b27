"""Other work on the machine while a probe repeats itself: what only holds on an idle machine does not hold."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from reprokit import launch

MOST_PROCESSES = 64
_BYTES = 1 << 22  # more than the caches that one core has to itself


@contextmanager
def busy(device: torch.device) -> Iterator[None]:
    """Keep the other cores at work, and on a GPU a second stream, for as long as the block lasts."""
    with ExitStack() as stack:
        for _ in range(min(max(_cores() - 1, 1), MOST_PROCESSES)):
            stack.enter_context(_process())
        if device.type == "cuda":
            stack.enter_context(_stream(device))
        yield


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _process() -> Iterator[None]:
    process = subprocess.Popen(launch.command(__name__), stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _stream(device: torch.device) -> Iterator[None]:
    """A thread that multiplies matrices on a stream of its own."""
    done = threading.Event()

    def work() -> None:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            x = torch.ones(2048, 2048, device=device)
            while not done.is_set():
                x @ x
                stream.synchronize()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main() -> None:
    """Copy memory until the process that started this one ends it."""
    launch.end_with_parent()
    source, target = bytearray(_BYTES), bytearray(_BYTES)
    while True:
        target[:] = source


if __name__ == "__main__":
    main()
