"""Fused operators: the compiler creates them from several others; users cannot name them."""
