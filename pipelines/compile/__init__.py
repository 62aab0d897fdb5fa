"""Graph to plan, one file a pass."""
