"""Random numbers: the operators `random.*`, batch_permutation, and their generators."""
