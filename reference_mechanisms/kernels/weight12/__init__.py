"""CUDA kernels that multiply by weights stored in 12 bits, and their twin that reads bf16."""
