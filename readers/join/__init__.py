"""Tables of labels and texts that readers join with their samples by key."""
