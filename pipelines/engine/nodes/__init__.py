"""Run samples through nodes on the host and on devices, and drop the samples that fail."""
