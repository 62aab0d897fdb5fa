"""Batches on a device: launched on a free lane, settled in order; the ways out where memory does not suffice."""
