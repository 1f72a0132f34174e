"""The engine: packed rows, static cache, one verify step for every arm, cut and commit."""
