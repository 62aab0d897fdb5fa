"""`if`, `and`, `or` and `not` on DataNodes: the source of functions is rewritten to graph operations."""
