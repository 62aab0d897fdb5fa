"""Measure and check decoding of JPEG on a GPU."""
