"""Write bytes into files: file operations, scatter-gather writes, framing loops, background threads, checksums."""
