"""How many drafts of each request to verify, under one budget of rows for all."""
