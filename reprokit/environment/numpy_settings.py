"""NumPy, the BLAS it really runs and the vector kernels it chose."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

from reprokit.environment import libraries
from reprokit.environment.absence import Absences, Unavailable, reason_of
from reprokit.environment.privacy import sha256_lines

# OpenBLAS adds a prefix in SciPy's builds and a suffix where its integers have 64 bits.
_PREFIXES, _SUFFIXES = ("", "scipy_"), ("", "64_", "_64")
_THREADING = ("sequential", "pthreads", "openmp")
_OPENBLAS_VERSION = re.compile(r"OpenBLAS\s+(\d[\w.]*)")


def collect(absences: Absences) -> dict[str, Any] | None:
    """The section `numpy`; null without NumPy."""
    try:
        import numpy  # the probe side works without it
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        absences.unavailable("numpy", "NumPy is not installed" if missing else reason_of(error))
        return None
    return {
        "version": numpy.__version__,
        "blas": _blas(absences, numpy),
        "cpu_baseline": absences.read("numpy.cpu_baseline", lambda: list(_kernels(numpy).__cpu_baseline__)),
        "cpu_dispatch": absences.read("numpy.cpu_dispatch", lambda: _dispatched(_kernels(numpy))),
        "cpu_features_sha256": absences.read(
            "numpy.cpu_features_sha256", lambda: sha256_lines(_enabled(_kernels(numpy)))
        ),
    }


def _kernels(numpy: Any) -> Any:
    core = getattr(numpy, "_core", None) or numpy.core
    return core._multiarray_umath


def _enabled(kernels: Any) -> list[str]:
    return [name for name, on in kernels.__cpu_features__.items() if on]


def _dispatched(kernels: Any) -> list[str]:
    enabled = set(_enabled(kernels))
    return [name for name in kernels.__cpu_dispatch__ if name in enabled]


def _blas(absences: Absences, numpy: Any) -> dict[str, Any]:
    built = absences.read("numpy.blas.name", lambda: _built_with(numpy)) or {}
    name, version = built.get("name"), built.get("version")
    record: dict[str, Any] = {
        "name": name,
        "version": version,
        "core": None,
        "config": None,
        "threading": None,
        "threads": None,
    }
    try:
        running = _openblas()
    except (Unavailable, OSError) as error:
        for field in ("core", "config", "threading", "threads"):
            absences.unavailable(f"numpy.blas.{field}", reason_of(error))
        return record
    return {**record, **running, "version": running["version"] or version}


def _built_with(numpy: Any) -> dict[str, Any]:
    try:
        configuration = numpy.show_config(mode="dicts")
    except TypeError:
        raise Unavailable("this NumPy is too old to tell its BLAS") from None
    return dict(configuration["Build Dependencies"]["blas"])


def _openblas() -> dict[str, Any]:
    """What the loaded OpenBLAS says of itself.

    Raises:
        Unavailable: NumPy runs another BLAS.
    """
    paths = [path for path in libraries.mapped() if "openblas" in os.path.basename(path)]  # noqa: PTH119
    # SciPy brings a copy of its own: the one in NumPy's folder is NumPy's.
    paths.sort(key=lambda path: ("numpy" not in libraries.relative_path(path), path))
    for path in paths:
        library = ctypes.CDLL(path)
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                if hasattr(library, f"{prefix}openblas_get_config{suffix}"):
                    return _ask(library, prefix, suffix)
    raise Unavailable("NumPy runs no OpenBLAS that could be asked")


def _ask(library: ctypes.CDLL, prefix: str, suffix: str) -> dict[str, Any]:
    def answer(question: str, kind: Any) -> Any:
        function = getattr(library, f"{prefix}openblas_get_{question}{suffix}", None)
        if function is None:
            return None
        function.restype, function.argtypes = kind, []
        value = function()
        return value.decode("ascii", "replace").strip() if isinstance(value, bytes) else value

    config = answer("config", ctypes.c_char_p)
    match = _OPENBLAS_VERSION.search(config or "")
    threading = answer("parallel", ctypes.c_int)
    return {
        "version": match[1] if match else None,
        "core": answer("corename", ctypes.c_char_p),
        "config": " ".join(config.split()) if config else None,
        "threading": _THREADING[threading] if threading in range(len(_THREADING)) else None,
        "threads": answer("num_threads", ctypes.c_int),
    }
