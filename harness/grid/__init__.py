"""The grid that is reproduced: targets x drafters x sets x regimes, on a named GPU."""
