"""Hand-written GPU kernels of the mechanisms."""
