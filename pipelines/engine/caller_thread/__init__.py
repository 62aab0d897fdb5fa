"""The thread that asks makes the batch itself, with no hand-over to another: small ones, and those that it feeds."""
