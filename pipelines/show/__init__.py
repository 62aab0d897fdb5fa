"""Display of results: tables for the terminal, HTML pages, and views for notebooks."""
