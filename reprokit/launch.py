"""How a module of the probe side is started in an interpreter of its own, and hands back its document."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

# `python -m` puts the working folder first on the path, where a user's random.py would shadow the library's.
# What stands there instead is the folder of a staged probe side, or nothing.
_START = (
    "import sys; sys.version_info >= (3, 10) or sys.exit('reprokit.probe: %s is Python %d.%d, the probe needs 3.10 "
    "or newer' % ((sys.executable,) + tuple(sys.version_info[:2]))); "
    "sys.path[:1] = [sys.argv[1]] if sys.argv[1] else sys.path[:1] if sys.path[0] else []; "
    "import os; sys.argv[1] and not os.path.exists(sys.argv[1] + '/reprokit-probe-side') and sys.exit("
    "'reprokit.probe: ' + sys.argv[1] + ' is not seen where the interpreter runs: it must be, at the same place'); "
    "del sys.argv[:2]; import runpy; runpy.run_module(sys.argv[0], run_name='__main__')"
)

STAGED = "reprokit-probe-side"  # the file that marks the folder of a staged probe side
_PR_SET_PDEATHSIG = 1  # prctl(2)


def command(module: str, *arguments: str, python: str = sys.executable, side: str | None = None) -> list[str]:
    """The command line that runs `module` as a program, the working folder not on its path.

    `side` is the folder of a staged probe side, first on the path of `python`; by default the one that this process
    runs from, if any.
    """
    folder = own_side() if side is None else side
    # a staged folder is gone afterwards, and the folders of another interpreter are not ours to write
    return [python, *(["-B"] if folder else []), "-c", _START, folder, module, *arguments]


def own_side() -> str:
    """The staged folder that this process runs from; empty where the package is installed or checked out."""
    root = Path(__file__).resolve().parent.parent
    return str(root) if (root / STAGED).exists() else ""


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, even by SIGKILL; on Linux alone.

    For processes that work only for the one waiting for them: without it, a probe would run on after its command
    was killed, and its fresh process after the recording one was.
    """
    if sys.platform == "linux":
        import ctypes  # here, because the host side starts without it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def claim_output() -> BinaryIO:
    """Standard output for this process's document alone.

    What libraries print to standard output goes to standard error: MKL and oneDNN print to the descriptor itself
    when they are asked to be verbose.
    """
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def hand_over(output: BinaryIO, document: bytes, path: str | None = None) -> NoReturn:
    """Write the document as one line, to the file `path` where one is given, and end this process at once.

    Nothing is left to be done, and an interpreter that has torch loaded takes a fifth of the time of importing it
    only to take itself apart.
    """
    with output:
        if path is None:
            output.write(document + b"\n")
        else:
            from reprokit.model import canonical

            canonical.write_file(path, document + b"\n")
    sys.stderr.flush()
    os._exit(0)
