"""How many tokens to draft at this load, none among the answers."""
