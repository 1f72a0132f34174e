"""Reads what other benchmarks wrote. Read-only; what a file does not say stays unknown."""
