"""Decoding and encoding JPEG, on the CPU and on a GPU."""
