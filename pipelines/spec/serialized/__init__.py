"""DALI's serialized pipelines: their wire format, their contents, and conversion to a graph."""
