"""Candidates that are not ours: their code runs in a process of its own, the clock stays outside."""
