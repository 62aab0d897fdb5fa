"""Lanes (CUDA streams), driver calls, and memory that a GPU reads directly."""
