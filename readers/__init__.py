"""Readers of data sets: for each format, an index of its records and a function that fetches them."""
