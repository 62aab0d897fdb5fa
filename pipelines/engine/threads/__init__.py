"""Worker threads, and the channels and latches through which threads pass batches on."""
