"""Operators that compute statistics of samples: reductions.* and normalize."""
