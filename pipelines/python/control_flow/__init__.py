"""`if` on DataNodes: source rewritten to graph operations."""
