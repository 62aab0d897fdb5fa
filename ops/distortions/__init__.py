"""Losses of cameras and codecs: noise, JPEG's artefacts."""
