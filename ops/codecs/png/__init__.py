"""PNG: a built-in decoder, with libdeflate."""
