"""The serving face: OpenAI-compatible completions over one engine that a thread of its own drives."""
