"""Check CUDA decoders: comparisons with the CPU on corrupt files, and compute-sanitizer."""
