"""Random numbers: the operators `random.*` and their generators."""
