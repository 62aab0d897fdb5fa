"""Iterators for frameworks: pytorch, jax, numpy."""
