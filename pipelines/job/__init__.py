"""A spec with `write:` from start to end: resume, additions, parts, retry, convert, report."""
