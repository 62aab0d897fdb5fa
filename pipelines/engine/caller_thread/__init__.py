"""Batches that the calling thread computes itself, without passing them to another thread: small ones, and those that
the program feeds."""
