"""Filters, windows and sizes of resizing, and the presets of other libraries."""
