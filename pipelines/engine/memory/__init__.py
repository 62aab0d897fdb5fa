"""Memory budgets: how much a run may hold on the host and on GPUs, estimates of what steps need, pools for reuse."""
