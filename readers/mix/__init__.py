"""readers.mix: several data sets as one, with weights."""
