"""The dynamic mode with PyTorch: the module `nodes` has nodes for the graphs of torchdata."""
