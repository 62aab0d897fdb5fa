"""Measure whole jobs: rates, memory, start-up, soak."""
