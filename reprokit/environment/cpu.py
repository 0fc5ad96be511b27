"""The processor as the hardware is: never what the software was told to use of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from reprokit.environment.absence import Absences, Unavailable
from reprokit.environment.privacy import sha256_lines

# Each level needs the flags of its row and of the rows before it in the same ladder. The names are oneDNN's.
_X86_LADDER = (
    ("sse41", {"sse4_1"}),
    ("avx", {"avx"}),
    ("avx2", {"avx2", "fma"}),
    ("avx512_core", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ("avx512_core_vnni", {"avx512_vnni"}),
    ("avx512_core_bf16", {"avx512_bf16"}),
    ("avx512_core_fp16", {"avx512_fp16"}),
    ("avx512_core_amx", {"amx_tile", "amx_int8", "amx_bf16"}),
)
_ARM_LADDER = (
    ("neon", {"asimd"}),
    ("neon_dotprod", {"asimddp"}),
    ("sve", {"sve"}),
    ("sve2", {"sve2"}),
    ("sme", {"sme"}),
)
_ARM_VENDORS = {
    0x41: "ARM",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}


def collect(absences: Absences) -> dict[str, Any]:
    """The section `cpu`."""
    described = absences.read("cpu.*", _cpuinfo) or {}
    flags = set((described.get("flags") or described.get("Features") or "").split())
    arm = "CPU implementer" in described
    return {
        "vendor": _arm_vendor(described) if arm else described.get("vendor_id"),
        "model": described.get("model name") or described.get("Model"),
        "family": _number(described.get("CPU architecture" if arm else "cpu family")),
        "model_number": _number(described.get("CPU part" if arm else "model")),
        "stepping": _number(described.get("CPU revision" if arm else "stepping")),
        "microcode": described.get("microcode"),
        "isa": isa(flags) if described else None,
        "flags_sha256": sha256_lines(list(flags)) if flags else None,
        "logical_cores": os.cpu_count(),
        "available_cores": absences.read("cpu.available_cores", _available_cores),
        "sockets": absences.read("cpu.sockets", _sockets),
        "numa_nodes": absences.read("cpu.numa_nodes", _numa_nodes),
    }


def isa(flags: set[str]) -> str:
    """Highest instruction-set level that a set of Linux feature flags holds, or `unknown`."""
    level = "unknown"
    for name, needed in _ARM_LADDER if "asimd" in flags else _X86_LADDER:
        if not needed <= flags:
            break
        level = name
    return "avx2_vnni" if level == "avx2" and "avx_vnni" in flags else level


def _cpuinfo() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; on a large machine the others cost time."""
    block: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                block[name.strip()] = value.strip()
    except FileNotFoundError:
        raise Unavailable("this system has no /proc/cpuinfo") from None
    return block


def _arm_vendor(described: dict[str, str]) -> str:
    code = int(described["CPU implementer"], 0)
    return _ARM_VENDORS.get(code, f"implementer {code:#x}")


def _number(text: str | None) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:  # "unknown" stands for an x86 stepping of 0
        return None


def _available_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        raise Unavailable("this system does not tell a process's processors")
    return len(os.sched_getaffinity(0))


def _sockets() -> int:
    packages = {
        path.read_text()
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    }
    if not packages:
        raise Unavailable("this system does not tell its processor packages")
    return len(packages)


def _numa_nodes() -> int:
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    if not nodes:
        raise Unavailable("this system does not tell its NUMA nodes")
    return len(nodes)
