"""Fresh prompts from a secret seed, of the kinds that the public sets are made of."""
