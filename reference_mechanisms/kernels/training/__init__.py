"""Kernels that only training uses, in Triton; torch does the same on the CPU."""
