"""DALI's Python API."""
