"""Lanes (CUDA streams), driver calls, memory that a GPU reads by itself."""
