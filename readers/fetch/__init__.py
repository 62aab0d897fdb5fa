"""Read the bytes of records into buffers: extents of mapped files, threads, URLs, files that a GPU reads."""
