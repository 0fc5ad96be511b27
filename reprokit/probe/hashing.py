"""The hash of a tensor: SHA-256 over dtype, shape and little-endian bytes.

`-0.0` and the payload of a NaN are bytes like any other and so part of the hash; a permutation of equal
elements, another shape or another dtype gives another one.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import torch

Array: TypeAlias = torch.Tensor | np.ndarray


def to_numpy(array: Array) -> np.ndarray:
    """`array` on the host as a contiguous NumPy array; bfloat16 and float8 as unsigned integers of their bits."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array)
    tensor = array.detach().contiguous().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)
    return tensor.numpy()


def dtype_name(array: Array) -> str:
    """The element type as torch and NumPy both spell it, such as `float32`."""
    return array.dtype.name if isinstance(array, np.ndarray) else str(array.dtype).removeprefix("torch.")


def sha256(array: Array) -> str:
    """`sha256:…` of the canonical encoding of `array`."""
    data = to_numpy(array)
    data = data.astype(data.dtype.newbyteorder("<"), copy=False)
    header = f"{dtype_name(array)}[{','.join(map(str, array.shape))}]"
    digest = hashlib.sha256(header.encode())
    digest.update(data.reshape(-1).view(np.uint8))
    return f"sha256:{digest.hexdigest()}"
