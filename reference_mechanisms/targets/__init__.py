"""Models whose output defines correctness."""
