"""Operators that only the compiler makes, out of several others."""
