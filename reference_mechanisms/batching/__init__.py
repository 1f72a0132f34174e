"""Many requests on one target at a time: what joins a step, what each may verify, and how it is run."""
