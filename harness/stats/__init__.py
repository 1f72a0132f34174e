"""How sure a run may be: pairing, intervals, verdicts, acceptance, latency, exact tests.

Pure functions from responses and counts to the records of `harness.results`. No file, no clock;
randomness only from the seed of the plan or a generator passed in.
"""
