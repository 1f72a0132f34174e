"""A demonstration of the loop: two deployments, planted cheats, no key and no network."""
