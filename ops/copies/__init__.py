"""The strided copy plan that a third of the operators are made of, and windows."""
