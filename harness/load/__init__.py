"""Load on OpenAI-compatible servers: the client, its schedule of arrivals, and what it reads back."""
