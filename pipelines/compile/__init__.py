"""Compile a graph to a plan: one pass per file."""
