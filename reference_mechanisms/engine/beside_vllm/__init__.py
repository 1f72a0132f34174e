"""The reference engine's steps and vLLM's on one GPU, both resident, timed in turn."""
