"""How a module of the probe side is started in an interpreter of its own, and hands back its document."""

from __future__ import annotations

import os
import signal
import sys
from typing import BinaryIO, NoReturn

# `python -m` puts the working folder first on the path, where a user's random.py would shadow the library's
_START = (
    "import sys; sys.path[0] or sys.path.pop(0); del sys.argv[0]; "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__')"
)

_PR_SET_PDEATHSIG = 1  # prctl(2)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` as a program with this interpreter, the working folder not on its path."""
    return [sys.executable, "-c", _START, module, *arguments]


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, even by SIGKILL; on Linux alone.

    For processes that work only for the one waiting for them: without it, a probe would run on after its command
    was killed, and its fresh process after the recording one was.
    """
    if sys.platform == "linux":
        import ctypes  # here, because the host side starts without it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def claim_output() -> BinaryIO:
    """Standard output for this process's document alone: what libraries print there goes to standard error.

    MKL and oneDNN print to the descriptor itself when they are asked to be verbose.
    """
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def hand_over(output: BinaryIO, document: bytes) -> NoReturn:
    """Write the document as one line and end this process at once.

    Nothing is left to be done, and an interpreter that has torch loaded takes a fifth of the time of importing it
    only to take itself apart.
    """
    with output:
        output.write(document + b"\n")
    sys.stderr.flush()
    os._exit(0)
