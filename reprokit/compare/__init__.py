"""Comparison of two fingerprints: which level holds, what moved first, what changed and what that suggests.

Pure functions over typed documents; this package knows no file format, no terminal and no service.
"""

from __future__ import annotations

from reprokit.compare.baseline import match, nothing_approved
from reprokit.compare.comparing import compare_fingerprints
from reprokit.compare.verdict import EXIT_CODES
from reprokit.model.baseline import Baseline
from reprokit.model.comparison import Comparison, Level
from reprokit.model.fingerprint import Fingerprint

__all__ = ["EXIT_CODES", "compare", "compare_fingerprints", "match", "nothing_approved"]


def compare(base: Fingerprint | Baseline, head: Fingerprint, required: Level = "bit") -> Comparison:
    """The sealed comparison of `head` with a fingerprint or with what a baseline approves for its hardware.

    Raises:
        InvalidInput: a fingerprint contradicts itself (two stages of one name, a logit hash that is not its logits').
    """
    return (
        match(base, head, required)
        if isinstance(base, Baseline)
        else compare_fingerprints(base, head, required)
    )
