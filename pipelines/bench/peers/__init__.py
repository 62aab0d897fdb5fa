"""Other libraries as peers of `bench`: DALI, PyTorch loops, nvJPEG."""
