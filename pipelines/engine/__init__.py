"""Run a compiled plan (operators in order): threads, queues, CUDA streams and memory budgets."""
