"""Which instruction set oneDNN really uses: it tells only in its verbose output, on standard output."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from reprokit.environment.absence import Unavailable

_STDOUT = 1
_ISA = re.compile(r"^onednn_verbose,(?:v\d,)?info,cpu,isa:(.+)$", re.MULTILINE)
_KERNEL = re.compile(r"^onednn_verbose,(?:v\d,)?(?:primitive,)?exec,cpu,eltwise,([^,]+),", re.MULTILINE)


class Effective(NamedTuple):
    """`isa` in oneDNN's words, null when it told that earlier; the `kernel` it chose for a small ReLU."""

    isa: str | None
    kernel: str

    def told_isa(self) -> str:
        """The instruction set.

        Raises:
            Unavailable: oneDNN told it before it was asked.
        """
        if self.isa is None:
            raise Unavailable("oneDNN printed it before it was asked, as it does once in a process")
        return self.isa


@functools.lru_cache(maxsize=1)
def effective() -> Effective:
    """Ask oneDNN once; it prints its instruction set only once in a process.

    Raises:
        Unavailable: this torch has no oneDNN, or it said nothing.
    """
    import torch as untyped  # the probe side works without it

    torch: Any = untyped

    if not torch.backends.mkldnn.is_available():
        raise Unavailable("this torch has no oneDNN")

    def operate() -> None:
        # Always oneDNN's: a matrix product in bf16 is not, where the instruction set is lowered to AVX2.
        values = torch.ones(4, 4, dtype=torch.float32, device="cpu")
        with torch.no_grad(), torch.backends.mkldnn.verbose(1):
            values.to_mkldnn().relu()

    text = captured(operate)
    _restore_verbosity(torch)
    kernel = _KERNEL.search(text)
    if kernel is None:
        raise Unavailable("oneDNN printed nothing")
    isa = _ISA.search(text)
    return Effective(isa[1].strip() if isa else None, kernel[1])


def captured(operate: Callable[[], None]) -> str:
    """What oneDNN prints while `operate` runs.

    Standard output is replaced at the level of the system, because the library knows nothing of Python's. It
    is put back as it was, also when it was closed, and what others printed meanwhile is passed on to it.
    """
    with _temporary_file() as file:
        _flush()
        saved = _duplicate(_STDOUT)
        try:
            os.dup2(file, _STDOUT)
            try:
                operate()
            finally:
                _flush()
                if saved is None:
                    os.close(_STDOUT)
                else:
                    os.dup2(saved, _STDOUT)
            printed = _content(file)
            others = b"".join(
                line for line in printed.splitlines(True) if not line.startswith(b"onednn_verbose")
            )
            if others and saved is not None:
                os.write(saved, others)
        finally:
            if saved is not None:
                os.close(saved)
    return printed.decode("utf-8", "replace")


@contextlib.contextmanager
def _temporary_file() -> Iterator[int]:
    """Descriptor, above those of the standard streams, of a nameless file; in memory where the system can."""
    if hasattr(os, "memfd_create"):
        first = os.memfd_create("onednn")
    else:
        with tempfile.TemporaryFile() as stream:
            first = os.dup(stream.fileno())
    # With a closed standard output the new descriptor may be 1 itself.
    file = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(first)
    try:
        yield file
    finally:
        os.close(file)


def _duplicate(descriptor: int) -> int | None:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:  # it is closed
        return None


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _flush() -> None:
    """Empty the buffers of the C library, which are not Python's."""
    ctypes.CDLL(None).fflush(None)


def _restore_verbosity(torch: Any) -> None:
    """torch switches the output off at the end; who asked for it by a variable keeps it."""
    level = os.environ.get("ONEDNN_VERBOSE") or os.environ.get("DNNL_VERBOSE") or ""
    if level.isdecimal() and int(level):
        torch._C._verbose.mkldnn_set_verbose(int(level))
