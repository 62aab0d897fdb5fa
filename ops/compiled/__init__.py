"""Compiled code on disk and in the wheel: machine code that Numba generated, and CUDA binaries."""
