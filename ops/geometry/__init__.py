"""Operators that move pixels or points by a coordinate map: rotations, affine and perspective maps, displacement."""
