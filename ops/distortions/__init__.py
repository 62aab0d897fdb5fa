"""Operators that imitate losses of cameras and codecs: noise, JPEG artefacts, jitter."""
