"""Proposes candidates and keeps those whose gain is significant and lossless."""
