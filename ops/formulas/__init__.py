"""Arithmetic on tensors and the `expr` operator."""
