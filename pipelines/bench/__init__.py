"""Measure specs: `dali-run bench` and `tune`, with settings and other libraries measured in turn."""
