"""Run specs that have a `write:` section: resume, additions, parts, retry, convert, report."""
