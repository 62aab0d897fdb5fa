"""Pipelines that answer requests: the server, and the model repository of NVIDIA Triton."""
