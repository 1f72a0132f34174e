"""Requests join while others decode, their prompts in pieces that keep nobody waiting."""
