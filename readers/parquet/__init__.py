"""Read Parquet files: footers, pages, columns, row groups."""
