"""Operators on arrays of any meaning: shape, slice, pad, join, cast, one_hot."""
