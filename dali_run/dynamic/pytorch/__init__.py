"""The dynamic mode with PyTorch: `nodes` are nodes of torchdata's graphs."""
