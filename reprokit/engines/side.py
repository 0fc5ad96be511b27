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
from reprokit.errors import ProbeFailed
from reprokit.launch import STAGED

_PACKAGE = Path(__file__).resolve().parent.parent
PARTS = (
    "__init__.py",
    "launch.py",
    "seeding.py",
    "model/__init__.py",
    "model/canonical.py",
    "environment",
    "probe",
)
LIBRARIES = ("pynvml",)  # pure Python; the NVIDIA library itself is the machine's


@contextmanager
def staged() -> Iterator[Path]:
    """A folder that holds the probe side alone, readable by every user, removed at the end."""
    with owner.temporary() as folder:
        try:
            _fill(folder)
        except (OSError, shutil.Error) as error:
            reason = getattr(error, "strerror", None) or "no space left, or no permission"
            raise ProbeFailed(f"{folder.parent}: the probe cannot be staged there: {reason}") from error
        yield folder


def _fill(folder: Path) -> None:
    for part in PARTS:
        _copy(_PACKAGE / part, folder / "reprokit" / part)
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is not None and spec.origin is not None:
            _copy(Path(spec.origin), folder / Path(spec.origin).name)
    (folder / STAGED).touch()
    for path in (folder, *folder.rglob("*")):  # whatever the umask, and nothing but what is in here
        path.chmod(0o755 if path.is_dir() else 0o644)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)
