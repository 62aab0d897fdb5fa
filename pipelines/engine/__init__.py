"""Run a compiled plan: threads, queues, lanes and memory budgets."""
