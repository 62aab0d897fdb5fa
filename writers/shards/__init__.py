"""The shard protocol: temporary names, journal, lock, resume, manifest, verify."""
