"""Output of commands with ``--json``: its types, by subject, and the JSON Schema of each."""
