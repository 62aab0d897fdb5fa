"""The bytes of records into buffers: extents, threads, URLs, files that a GPU reads."""
