"""Fixtures shared by the tests: the command line as a user runs it, and fingerprints measured once a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# no test is decided by how fast the machine is
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

# a shell starts what runs in its background with Ctrl-C ignored, and whatever a test starts would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the probe itself does, before torch is imported

Run = Callable[..., subprocess.CompletedProcess[str]]
# what the machine under test may have set must not decide what a test sees
NUMERIC = ("ATEN_", "MKL_", "OMP_", "ONEDNN_", "DNNL_", "PYTHONHASHSEED")


def reprokit(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with `variables` set."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NUMERIC)}
    return subprocess.run(
        [sys.executable, "-m", "reprokit", *map(str, arguments)],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def run() -> Run:
    """The command line: `run("compare", base, head, OMP_NUM_THREADS="1")`."""
    return reprokit


@pytest.fixture(scope="session")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A fingerprint of this machine: `measure("quick", MKL_CBWR="COMPATIBLE")`; each kind is measured once."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("fingerprints")
    known: dict[tuple[object, ...], Path] = {}

    def probe(profile: str, *arguments: str, again: int = 0, **variables: str) -> Path:
        key = (profile, arguments, again, tuple(sorted(variables.items())))
        if key not in known:
            path = folder / f"{len(known)}.json"
            done = reprokit("probe", "-o", path, "--profile", profile, *arguments, **variables)
            assert done.returncode == 0, done.stderr
            known[key] = path
        return known[key]

    return probe
