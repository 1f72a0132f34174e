"""Judges emitted token ids against stock: the one rule of the house, from the ids alone.

Never uses log-probabilities, token counts or texts of the arm under test as evidence for it.
"""
