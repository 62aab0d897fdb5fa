"""Blur, convolution and morphology: every value from those around it."""
