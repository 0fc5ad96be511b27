"""Probe side: runs the canonical workload and writes a fingerprint. Needs the standard library, torch and numpy."""
