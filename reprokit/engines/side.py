"""The probe side by itself: what is put on the path of an interpreter that has torch and knows nothing of reprokit.

The folder of an installation would not do: everything that the host side needs lies beside it, and would be found,
and measured, by the other interpreter.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reprokit.engines import owner
from reprokit.launch import STAGED

_PACKAGE = Path(__file__).resolve().parent.parent
PARTS = ("__init__.py", "launch.py", "model/__init__.py", "model/canonical.py", "environment", "probe")
LIBRARIES = ("pynvml",)  # pure Python; the NVIDIA library itself is the machine's


@contextmanager
def staged() -> Iterator[Path]:
    """A folder that holds the probe side alone, readable by every user, removed at the end."""
    with owner.temporary() as folder:
        for part in PARTS:
            _copy(_PACKAGE / part, folder / "reprokit" / part)
        for library in LIBRARIES:
            spec = importlib.util.find_spec(library)
            if spec is not None and spec.origin is not None:
                _copy(Path(spec.origin), folder / Path(spec.origin).name)
        (folder / STAGED).touch()
        (folder / STAGED).chmod(0o644)
        folder.chmod(0o755)
        yield folder


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder, whatever the umask, so that the user of a container can read it."""
    if source.is_dir():
        for entry in source.iterdir():
            if entry.name != "__pycache__":
                _copy(entry, target / entry.name)
        return
    for folder in (target.parent, target.parent.parent):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.chmod(0o755)
    shutil.copyfile(source, target)
    target.chmod(0o644)
