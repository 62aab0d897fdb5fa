"""CUDA sources, compiled by NVRTC when they are first launched."""
