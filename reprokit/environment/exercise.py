"""A small run of each family of operators, so that the libraries behind them are really loaded.

It draws no random number and changes no setting.
"""

from __future__ import annotations

from typing import Any

_SIZE = 64


def run() -> None:
    """Run on the CPU, with NumPy and, where torch has CUDA, on the GPU; what is not installed is left out."""
    try:
        import torch  # the probe side works without it
    except Exception:  # the collector records why
        torch = None  # type: ignore[assignment,unused-ignore]
    if torch is not None:
        _operators(torch, "cpu")
        if torch.cuda.is_available():
            _operators(torch, "cuda")
            torch.cuda.synchronize()
    try:
        import numpy  # as torch
    except Exception:  # the collector records why
        return
    square: Any = numpy.ones((_SIZE, _SIZE), dtype=numpy.float32)
    numpy.linalg.norm(square @ square)


def _operators(torch: Any, device: str) -> None:
    with torch.no_grad():
        square = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device=device)
        image = torch.ones(1, 8, 16, 16, dtype=torch.float32, device=device)
        kernel = torch.ones(8, 8, 3, 3, dtype=torch.float32, device=device)
        half = square.to(torch.bfloat16)
        torch.matmul(square, square).sum()
        torch.matmul(half, half)
        torch.nn.functional.conv2d(image, kernel)
        torch.softmax(square, dim=-1)
        torch.nn.functional.layer_norm(square, (_SIZE,))
        heads = square.reshape(1, 4, _SIZE // 4, _SIZE)
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        torch.sort(square.reshape(-1))
