"""Acceptance traces: what drafts of a request were worth, recorded from a run or imposed from a seed."""
