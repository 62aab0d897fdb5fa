"""Reading, feeding and writing."""
