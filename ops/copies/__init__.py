"""Strided copies: the copy plan on which a third of the operators are built, its kernels, and windows."""
