"""`quantize.*`: what the quantiser makes of full mantissas, calibration, integer formats and codebooks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from reprokit.probe import exact
from reprokit.probe.lfq import quantiser
from reprokit.probe.lfq.formats import FORMATS
from reprokit.probe.lfq.invariants import known
from reprokit.probe.recorder import Stage


def quantize_stages(device: torch.device) -> Iterator[Stage]:
    """Bell-shaped blocks of full mantissas through each format and both scale rules: codes, scales and values."""
    x = exact.bell((64, 256), "quantize.input").to(device)
    for form in FORMATS:
        for rule in ("floor", "rceil"):
            low_bit = quantiser.quantise(x, form, rule)
            name = f"quantize.{form.name}.{rule}"
            yield known(f"{name}.scales", "quantize", lambda low_bit=low_bit: low_bit.scales)
            yield known(
                f"{name}.codes", "quantize", lambda low_bit=low_bit: low_bit.codes, (f"{name}.scales",)
            )
            yield known(
                f"{name}.values", "quantize", lambda low_bit=low_bit: low_bit.dequantise(), (f"{name}.codes",)
            )
