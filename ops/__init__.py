"""Batches, the declaration of operators, and the operators: the ground floor."""
