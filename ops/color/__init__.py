"""Colour operators: brightness, contrast, hue, saturation, colour spaces, histograms, Bayer patterns."""
