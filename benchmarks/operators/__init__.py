"""Single operators and chains of them, beside other libraries."""
