"""Tokens a second of many requests at a constant concurrency, ours and vLLM's, under replayed acceptance."""
