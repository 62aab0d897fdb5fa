"""Operators that compute statistics of a sample."""
