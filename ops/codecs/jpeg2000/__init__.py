"""JPEG 2000 on a GPU by ourselves: the plain kinds that data sets hold."""
