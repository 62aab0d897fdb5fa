"""Parquet: footers, pages, columns, row groups."""
