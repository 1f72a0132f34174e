"""Runs arms on the same prompts, interleaved, in fresh processes, and stamps every event."""
