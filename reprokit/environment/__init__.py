"""The environment of a fingerprint, collected in the process that measures.

Needs the standard library alone. torch, NumPy and pynvml are asked where they are installed; what cannot be
read is recorded with its reason. The shape of the result is `reprokit.model.environment.Environment`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reprokit.environment import (
    cpu,
    driver,
    gpu,
    libraries,
    numpy_settings,
    nvml,
    packages,
    source,
    system,
    torch_settings,
    variables,
)
from reprokit.environment.absence import Absences

DETAILS = ("private", "full")


def collect(detail: str = "private", told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every section of the environment as plain data; call it after operators have run.

    `detail` private keeps out what names a machine, a user or a place; full shows it. `told` is what a process in a
    container cannot know: `image`, `commit` and `dirty`.

    Raises:
        ValueError: `detail` is neither.
    """
    if detail not in DETAILS:
        raise ValueError(f"detail: expected one of {', '.join(DETAILS)}, found {detail!r}")
    absences = Absences()
    installed = absences.read("packages", packages.find) or {}
    torch = torch_settings.collect(absences)  # first: other sections ask what it has loaded
    numpy = numpy_settings.collect(absences)
    with nvml.connected() as session:
        gpus = gpu.collect(absences, session, detail)
        nvidia = driver.collect(absences, session, installed, detail)
    sections = {
        "system": system.collect(absences),
        "python": packages.collect_python(absences, installed),
        "packages": packages.collect(installed, detail),
        "cpu": cpu.collect(absences),
        "gpus": gpus,
        "driver": nvidia,
        "torch": torch,
        "numpy": numpy,
        "libraries": libraries.collect(absences, detail),
        "variables": variables.collect(detail),
        "source": source.collect(absences, told),
        "image": None if told is None else told["image"],
    }
    return {**sections, "absent": absences.entries()}


def other_variables(detail: str) -> dict[str, Any]:
    """Count and hash of the environment variables that are on no list; they belong under `run`."""
    return variables.other_variables(detail)
