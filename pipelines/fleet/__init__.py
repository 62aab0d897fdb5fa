"""Many workers for one job: processes of this machine, one a GPU, or actors of a Ray cluster, under one driver."""
