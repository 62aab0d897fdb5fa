"""A plan at work: threads, queues, lanes."""
