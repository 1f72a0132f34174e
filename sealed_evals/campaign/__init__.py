"""Unseen prompts for one campaign: vault, ledger, canaries, and the verdict of a confirmation."""
