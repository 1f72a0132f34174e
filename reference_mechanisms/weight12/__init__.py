"""Lossless 12-bit storage of bf16 weights: format, codec, container, folders, a torch reference."""
