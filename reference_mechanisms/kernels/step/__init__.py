"""What a step of a few rows does between its matrix products: torch twin and Triton kernels."""
