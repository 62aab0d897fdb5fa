"""The accounts of memory that let batches in."""
