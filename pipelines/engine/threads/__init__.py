"""Threads and the hand-overs between them: pools, channels, latches."""
