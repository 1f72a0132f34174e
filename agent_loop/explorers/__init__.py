"""Who proposes: offline search, and language models."""
