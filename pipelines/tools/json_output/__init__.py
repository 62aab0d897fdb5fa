"""The output of commands with ``--json``: its types, by what they tell of, and the JSON Schema of each."""
