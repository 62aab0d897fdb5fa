"""CUDA sources of audio operators."""
