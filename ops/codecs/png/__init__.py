"""PNG: our decoder, around libdeflate."""
