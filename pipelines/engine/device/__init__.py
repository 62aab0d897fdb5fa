"""Launch batches on free CUDA streams of a device and complete them in order; fall back if memory does not suffice."""
