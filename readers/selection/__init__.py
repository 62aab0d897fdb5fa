"""Which records of a data set a reader reads: parts by the key."""
