"""torch's attention kernels by name."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from reprokit.probe.recorder import Unavailable

DEFAULT = "default"  # the one that torch picks


def backends(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Those that a device can be asked for; one that has no kernel for a case is unavailable when it is called."""
    if device.type == "cuda":
        return [DEFAULT, "math", "flash_attention", "efficient_attention", "cudnn_attention"]
    if dtype == torch.float32:
        return [DEFAULT, "math", "flash_attention"]
    # torch 2.13's flash kernel on CPU raises when ATEN_CPU_CAPABILITY is below what the hardware has
    return ["math"]


def attend(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of q, k, v (B, H, T, d) by one backend.

    Raises:
        Unavailable: the backend has no kernel for this dtype on this device.
    """
    if backend == DEFAULT:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([getattr(SDPBackend, backend.upper())]):
        try:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            raise Unavailable(f"torch has no {backend} kernel for {q.dtype} on this device") from error
