"""BMP and PNM: pixels that are stored as they are."""
