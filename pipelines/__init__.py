"""A spec or a Python function becomes a running job: one file a pass."""
