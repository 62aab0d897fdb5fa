"""Launch batches on free lanes of a device and complete them in order; fall back if memory does not suffice."""
