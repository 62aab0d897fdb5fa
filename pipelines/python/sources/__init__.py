"""external_source: callables, iterables, worker processes."""
