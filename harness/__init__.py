"""The instrument: runs arms on the same prompts, checks every token, says how sure it is."""
