"""Colour operators."""
