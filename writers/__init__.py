"""Write outputs: container formats that share one shard protocol."""
