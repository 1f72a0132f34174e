"""Hash-pinned evaluation sets: public rows and unseen shards."""
