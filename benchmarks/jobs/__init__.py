"""Whole jobs: rates, memory, start-up, soak."""
