"""Flip, crop, resize and their random variants."""
