"""One budget of nodes for the draft trees of all requests."""
