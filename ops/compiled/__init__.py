"""Compiled code that is kept: what Numba made, on disk and in the wheel, and CUDA binaries."""
