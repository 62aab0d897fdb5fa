"""DALI's serialized pipelines: the wire format, what a file says, and the graph that comes of it."""
