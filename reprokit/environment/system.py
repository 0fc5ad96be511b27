"""The operating system and the limits it sets to this process."""

from __future__ import annotations

import locale
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprokit.environment.absence import Absences

_CGROUPS = Path("/sys/fs/cgroup")
# Version 1 of the control groups writes "no limit" as the largest page-aligned number.
_UNLIMITED = 2**62
_CONTAINER_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
)
_SELF_NAMED = ("docker", "podman", "oci", "lxc", "lxc-libvirt", "systemd-nspawn", "flatpak", "rkt", "wsl")
_CGROUP_NAMES = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
)


def collect(absences: Absences) -> dict[str, Any]:
    """The section `system`."""
    return {
        "os": platform.system() or None,
        "kernel": platform.release() or None,
        "machine": platform.machine() or None,
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "locale": absences.read("system.locale", _locale),
        "byte_order": sys.byteorder,
        "container": absences.read("system.container", container),
        "cpu_limit": absences.read("system.cpu_limit", _cpu_limit),
        "memory_limit_bytes": absences.read("system.memory_limit_bytes", _memory_limit),
    }


def container() -> str:
    """Name of the container runtime around this process, or `none`."""
    for variable, runtime in _CONTAINER_VARIABLES:
        if variable in os.environ:
            return runtime
    if Path("/run/.containerenv").exists():
        return "podman"
    if Path("/.dockerenv").exists():
        return "docker"
    groups = _text(Path("/proc/1/cgroup")) or ""
    for word, runtime in _CGROUP_NAMES:
        if word in groups:
            return runtime
    said = os.environ.get("container", "")  # noqa: SIM112 - so systemd-nspawn and LXC write it
    return said if said in _SELF_NAMED else "none"


def _locale() -> str:
    return f"{locale.setlocale(locale.LC_CTYPE)} {locale.getpreferredencoding(False)}"


def _cpu_limit() -> float | None:
    limits = []
    for folder in _own_cgroups("cpu"):
        unified = (_text(folder / "cpu.max") or "max").split()
        quota, period = unified if len(unified) == 2 else ("max", "1")  # "quota period"
        if quota == "max":
            quota = _text(folder / "cpu.cfs_quota_us") or "-1"
            period = _text(folder / "cpu.cfs_period_us") or "100000"
        if int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _memory_limit() -> int | None:
    limits = []
    for folder in _own_cgroups("memory"):
        text = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") or "max"
        if text != "max" and int(text) < _UNLIMITED:
            limits.append(int(text))
    return min(limits, default=None)


def _own_cgroups(controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those above it, in both versions' layouts."""
    for line in (_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        if not root.is_dir():
            root = _CGROUPS / controller
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_dir():
                yield folder
            if folder == root:
                break


def _text(path: Path) -> str | None:
    """What a small kernel file says; null when the kernel does not have it."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
