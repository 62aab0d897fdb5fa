"""external_source: callables, iterables, fed data and worker processes as sources of batches."""
