"""Tests of the training of drafters."""
