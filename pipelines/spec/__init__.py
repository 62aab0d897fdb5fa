"""YAML text to model to graph, and back; the JSON Schema."""
