"""Two-level verification: a cheap verifier in front of the target."""
