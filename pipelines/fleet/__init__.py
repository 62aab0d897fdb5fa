"""Run one job with many workers under one driver: processes of this machine, one per GPU, or actors of a Ray
cluster."""
