"""Seeding and every determinism switch, in one call, for a user's training script and for the probe's mode strict."""

from __future__ import annotations


def variables(seed: int) -> dict[str, str]:
    """The environment variables that must be set before an interpreter starts."""
    return {"PYTHONHASHSEED": str(seed), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def seed_everything(seed: int, deterministic: bool = True) -> None:
    """Placeholder."""
    import torch

    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(deterministic)
