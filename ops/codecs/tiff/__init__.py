"""TIFF by ourselves: the plain kinds that data sets hold."""
