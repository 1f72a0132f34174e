"""What a step of many requests does between its matrix products: torch twin and Triton kernels."""
