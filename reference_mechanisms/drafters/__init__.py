"""Whatever proposes draft tokens."""
