"""The judge of the loop: one process that owns the database, runs the cascade and spends confirm slots."""
