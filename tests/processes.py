"""A command whose process of choice hangs, so that a test can end one of its processes and see what the others do.

Reads /proc and waits on process descriptors: for tests marked `processes.linux`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and waits on process descriptors")
_SECONDS = 60  # only a test that fails waits as long

# sitecustomize.py: a process with ARGUMENT says through the pipe that it has come to import NumPy, and hangs there
_HANG = """
import signal, sys
class Hang:
    def find_spec(name, path, target=None):
        if name == "numpy":
            with open(PIPE, "w") as pipe:
                pipe.write("hangs")
            signal.pause()
if ARGUMENT in sys.orig_argv:
    sys.meta_path.insert(0, Hang)
"""


class Hanging:
    """The command line at work, one of its processes hanging at its import of NumPy.

    Attributes:
        command: the command, its standard error a pipe.
        processes: it and its descendants, each with a descriptor, the parent before the child.
    """

    def __init__(self, command: subprocess.Popen[str]) -> None:
        self.command = command
        self.processes: dict[int, int] = {}

    def lines(self) -> Iterator[str]:
        """What the command says, line by line."""
        assert self.command.stderr is not None
        return iter(self.command.stderr)

    def ended(self) -> set[int]:
        """Those of the processes that have ended, once all have or a minute has passed."""
        poll, ended = select.poll(), set()
        for descriptor in self.processes.values():
            poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + _SECONDS
        while len(ended) < len(self.processes) and time.monotonic() < deadline:
            for descriptor, _ in poll.poll(1000):
                ended.add(descriptor)
                poll.unregister(descriptor)
        return {process for process, descriptor in self.processes.items() if descriptor in ended}


@contextmanager
def hanging(folder: Path, argument: str, *arguments: str | Path) -> Iterator[Hanging]:
    """`reprokit ARGUMENTS…`, the process with `argument` on its command line hanging; all are killed at the end."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    (folder / "sitecustomize.py").write_text(f"PIPE, ARGUMENT = {str(pipe)!r}, {argument!r}\n{_HANG}")
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(
        [sys.executable, "-m", "reprokit", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
    ) as command:
        hung = Hanging(command)
        try:
            hung.processes[command.pid] = os.pidfd_open(command.pid)
            assert select.select([reading], [], [], _SECONDS)[0], f"no process with {argument} imports NumPy"
            for process in _descendants(command.pid):
                hung.processes[process] = os.pidfd_open(process)
            yield hung
        finally:
            os.close(reading)
            for descriptor in hung.processes.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                os.close(descriptor)


def _descendants(ancestor: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [ancestor]
    for process in found:  # grows as it goes
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]
