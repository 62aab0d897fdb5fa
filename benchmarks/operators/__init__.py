"""Compare single operators and chains of them with other libraries."""
