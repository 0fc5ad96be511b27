"""A folder for files that a stage writes and reads back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reprokit.probe.recorder import Unavailable


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder of its own, gone afterwards.

    Raises:
        Unavailable: no folder for temporary files can be written, or it is full.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="reprokit-") as path:
            yield Path(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # the error's own text may hold paths, which name the machine
        raise Unavailable(f"no file can be kept in the folder for temporary ones: {reason}") from error
