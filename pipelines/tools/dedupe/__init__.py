"""Deduplicate a data set by its scores: files of scores, clusters, the list of keys to keep, a page of clusters."""
