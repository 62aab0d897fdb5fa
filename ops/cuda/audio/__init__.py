"""CUDA sources of sounds."""
