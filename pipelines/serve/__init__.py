"""Serving of pipelines: a server that answers requests, and model repositories for NVIDIA Triton."""
