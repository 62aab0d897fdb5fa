"""Where samples go: formats behind one shard protocol."""
