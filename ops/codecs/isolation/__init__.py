"""Decoders in processes of their own, so that a crash costs one sample."""
