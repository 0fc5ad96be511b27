"""The instruction-set level of the hardware, from feature flags of real processors."""

from __future__ import annotations

import pytest

from reprokit.environment import cpu

SSE = "sse sse2 ssse3 sse4_1 sse4_2 popcnt"
AVX2 = f"{SSE} avx f16c fma avx2 bmi2"
SKYLAKE = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", "unknown"),
        ("sse sse2", "unknown"),
        (SSE, "sse41"),
        (f"{SSE} avx", "avx"),
        (AVX2, "avx2"),
        (f"{AVX2} avx_vnni", "avx2_vnni"),
        (f"{AVX2} avx512f avx512cd avx512er avx512pf", "avx2"),  # Knights Landing
        (SKYLAKE, "avx512_core"),
        (f"{SKYLAKE} avx512_vnni", "avx512_core_vnni"),
        (f"{SKYLAKE} avx512_vnni avx512_bf16", "avx512_core_bf16"),  # Zen 4
        (f"{SKYLAKE} avx512_vnni avx512_bf16 avx_vnni avx512_fp16", "avx512_core_fp16"),  # AMX off
        (f"{SKYLAKE} avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16", "avx512_core_amx"),
        ("fp asimd", "neon"),
        ("fp asimd asimddp sve", "sve"),
        ("fp asimd asimddp sve sve2 svebf16", "sve2"),
    ],
)
def test_isa(flags: str, level: str) -> None:
    assert cpu.isa(set(flags.split())) == level
