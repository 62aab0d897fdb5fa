"""Commands for those who come from DALI: its programs, and its serialized pipelines."""
