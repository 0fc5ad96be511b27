"""`lfq`: the canonical probe, a small causal transformer in low-bit floating-point quantisation."""

NAME = "lfq"
VERSION = 1
