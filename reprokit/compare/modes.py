"""The two modes of one cell side by side: what it says that only one of them moved, and which heads make a pair."""

from __future__ import annotations

from fnmatch import fnmatchcase

from reprokit.compare.comparing import COMPARABLE
from reprokit.compare.environment import compare_environment
from reprokit.compare.verdict import State
from reprokit.model.comparison import Comparison
from reprokit.model.fingerprint import Fingerprint, hardware

ONLY_DEFAULT = (
    "Only mode default moved: the difference comes through something that the switches of mode strict exclude, such as "
    "an autotuned or non-deterministic kernel, TF32, sums in reduced precision, the cuBLAS workspace or the attention "
    "backend. Runs in mode strict are protected; reprokit.seed_everything(seed) switches it on."
)
ONLY_STRICT = (
    "Only mode strict moved: a deterministic kernel or the setting of a switch changed. Users in mode default are not "
    "affected."
)
BOTH = "Both modes moved: this is not a matter of switches, but of what the two share: a kernel, data, weights or code."
WORST_FIRST: tuple[State, ...] = ("invalid", "drifted", "no_baseline", "holds")  # the worse mode decides
# What `reprokit.seed_everything` sets, or the variables that it needs; what may differ between equal runs besides.
_SET_BY_THE_MODE = (
    "torch.deterministic_*",
    "torch.fill_uninitialized_memory",
    "torch.fp32_precision.*",
    "torch.float32_matmul_precision",
    "torch.cudnn.deterministic",
    "torch.cudnn.benchmark",
    "torch.cudnn.allow_tf32",
    "torch.matmul.*",
    "torch.attention.*",
    "torch.mkldnn.deterministic",
    "torch.inductor.deterministic",
    "python.hash_*",
    "variables.PYTHONHASHSEED",
    "variables.CUBLAS_WORKSPACE_CONFIG",
    "variables.TORCHINDUCTOR_DETERMINISTIC",
    "run.*",
)


def meaning(default: Comparison, strict: Comparison) -> str | None:
    """What follows from which of the two modes moved, in words; None where neither did or one was not compared."""
    moved = {(True, False): ONLY_DEFAULT, (False, True): ONLY_STRICT, (True, True): BOTH}
    one, other = _moved(default), _moved(strict)
    return None if one is None or other is None else moved.get((one, other))


def no_pair(default: Fingerprint, strict: Fingerprint) -> str | None:
    """Why two fingerprints are not one machine and code in mode default and in mode strict; None where they are."""
    modes = (default.probe.mode, strict.probe.mode)
    if modes != ("default", "strict"):
        return f"the first must be of mode default and the second of mode strict, found {modes[0]} and {modes[1]}"
    found = [
        (key, getattr(default.probe, key), getattr(strict.probe, key)) for key in (*COMPARABLE, "version")
    ]
    found.append(("hardware", hardware(default), hardware(strict)))
    differing = [(name, old, new) for name, old, new in found if old != new and name != "mode"]
    differing += [
        (change.field, change.base, change.head)
        for change in compare_environment(default, strict, ())
        if not any(fnmatchcase(change.field, pattern) for pattern in _SET_BY_THE_MODE)
    ]
    if not differing:
        return None
    name, *values = differing[0]
    old, new = ("unset" if value is None else value for value in values)
    return f"the two must differ in nothing but the mode, and {name} is {old} in the first and {new} in the second"


def _moved(comparison: Comparison) -> bool | None:
    """Whether any number left its approved one; None where that was not compared."""
    verdict = comparison.verdict
    return None if verdict.state in ("invalid", "no_baseline") else verdict.level != "bit"
