"""The element formats of OCP Microscaling (MX) v1.0: E4M3, E5M2, E3M2, E2M3 and E2M1, and the scale E8M0.

A code is a sign bit, then the exponent, then the mantissa. Everything here is integer arithmetic and powers of
two, so that the tables are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Format:
    """A low-bit floating-point format.

    `special` tells which codes of the largest exponent are no numbers: `ieee` (E5M2: infinities and NaNs),
    `nan` (E4M3: only the all-ones code is NaN) or `none` (FP6 and FP4: every code is finite).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    special: str

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is taken from the stored exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def least_exponent(self) -> int:
        """Exponent of the smallest normal number, and of every subnormal one."""
        return 1 - self.bias

    @property
    def greatest_exponent(self) -> int:
        """Exponent of the largest finite number; the block scale is taken relative to it."""
        return math.frexp(self.largest)[1] - 1

    @cached_property
    def largest(self) -> float:
        """Largest finite number: 448, 57,344, 28, 7.5 and 6."""
        return max(value for value in self.values if math.isfinite(value))

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The number that each code stands for, in the order of the codes; −0, NaN and infinities included."""
        return tuple(self._value(code) for code in range(1 << self.bits))

    def _value(self, code: int) -> float:
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        exponent = (code >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        mantissa = code & ((1 << self.mantissa_bits) - 1)
        top = exponent == (1 << self.exponent_bits) - 1
        if self.special == "ieee" and top:
            return math.nan if mantissa else sign * math.inf
        if self.special == "nan" and top and mantissa == (1 << self.mantissa_bits) - 1:
            return math.nan
        hidden = 0 if exponent == 0 else 1 << self.mantissa_bits
        return sign * math.ldexp(hidden + mantissa, max(exponent, 1) - self.bias - self.mantissa_bits)


E4M3 = Format("e4m3", 4, 3, "nan")
E5M2 = Format("e5m2", 5, 2, "ieee")
E3M2 = Format("e3m2", 3, 2, "none")
E2M3 = Format("e2m3", 2, 3, "none")
E2M1 = Format("e2m1", 2, 1, "none")
FORMATS = (E4M3, E5M2, E3M2, E2M3, E2M1)

SCALE_BIAS = 127  # of E8M0: code c is the scale 2^(c − 127)
SCALE_NAN = 0xFF
