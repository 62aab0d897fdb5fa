"""Arithmetic on tensors: the `expr` operator, its types, and its loops and kernels."""
