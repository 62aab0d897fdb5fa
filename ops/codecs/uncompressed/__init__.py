"""BMP and PNM: uncompressed pixels, which are copied."""
