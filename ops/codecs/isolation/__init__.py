"""Decoders in separate processes, so that a crash costs one sample."""
