"""Selection of the records that a reader reads: parts of a data set, by the records' keys."""
