"""Samples go through nodes, and those that fail leave: what runs of nodes need, on the host and on a device."""
