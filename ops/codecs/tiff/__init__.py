"""TIFF: a built-in decoder for the common variants."""
