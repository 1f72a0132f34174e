"""Adapters between the instrument and engines: one file an engine."""
