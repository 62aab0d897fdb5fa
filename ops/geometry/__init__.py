"""Operators that move pixels by a coordinate mapping."""
