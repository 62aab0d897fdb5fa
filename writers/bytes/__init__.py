"""Bytes on their way into files: file operations, scatter-gather writes, framing loops, background threads."""
