"""How far legitimate variants moved each operator, the largest relative L2 distance each.

Written by `bin/measure-tolerances`; do not edit by hand. Columns: which stages (an operator class, or a pattern of
stage names), element type, largest distance, the variant that gave it. For quantised codes the distance is the
share of codes that flipped.
"""

from __future__ import annotations

ORIGIN = "torch 2.13.0+cpu, x86-64 CPU, AVX512"

# (subject, element type, largest distance, variant)
MEASURED: tuple[tuple[str, str, float, str], ...] = (
    ("*.codes.fp8", "uint8", 0.253, "one flipped code"),
    ("*.fp32", "float32", 7.99e-07, "reversed reduction order"),
    ("*.fp8", "float32", 0.0403, "one flipped code"),
    ("attention", "bfloat16", 1.32e-05, "MKL_CBWR=COMPATIBLE"),
    ("attention", "float32", 3.62e-07, "reversed reduction order"),
    ("conv", "bfloat16", 3.18e-05, "ONEDNN_MAX_CPU_ISA=AVX2"),
    ("conv", "float32", 4.7e-07, "ONEDNN_MAX_CPU_ISA=AVX2"),
    ("elementwise", "bfloat16", 2.77e-08, "ONEDNN_MAX_CPU_ISA=AVX2"),
    ("elementwise", "float32", 1.07e-07, "ONEDNN_MAX_CPU_ISA=AVX2"),
    ("elementwise", "float64", 0, "none of the variants"),
    ("gather", "float32", 0, "none of the variants"),
    ("gemm", "bfloat16", 3.42e-05, "ONEDNN_MAX_CPU_ISA=AVX2"),
    ("gemm", "float32", 6.85e-07, "MKL_CBWR=COMPATIBLE"),
    ("logits", "float32", 0.0226, "one flipped code"),
    ("metrics.digits.evaluation", "float64", 4.35e-09, "MKL_CBWR=COMPATIBLE"),
    ("metrics.digits.losses", "float32", 6.14e-08, "reversed reduction order"),
    ("norm", "bfloat16", 3.43e-05, "reversed reduction order"),
    ("norm", "float32", 6.2e-08, "reversed reduction order"),
    ("reduction", "float32", 3.84e-07, "reversed reduction order"),
    ("rng", "float32", 0, "none of the variants"),
    ("rng", "float64", 0, "none of the variants"),
    ("rng", "int64", 0, "none of the variants"),
    ("rng.*_normal", "float32", 1.84e-07, "ATEN_CPU_CAPABILITY=default"),
    ("rng.*_normal", "float64", 0, "none of the variants"),
    ("scatter", "float32", 2.78e-07, "reversed reduction order"),
    ("softmax", "bfloat16", 5.76e-05, "ATEN_CPU_CAPABILITY=avx2"),
    ("softmax", "float32", 1.01e-07, "ATEN_CPU_CAPABILITY=default"),
    ("sort", "float32", 0, "none of the variants"),
    ("sort", "float64", 0, "none of the variants"),
)
