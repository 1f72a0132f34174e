"""Trains the small hybrid target that comes with this package."""
