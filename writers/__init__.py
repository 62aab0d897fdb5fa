"""Writers: formats that share one shard protocol."""
