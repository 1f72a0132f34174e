"""Gates: whether a change may go in. Counts and tokens exactly; time only on a GPU of its own."""
