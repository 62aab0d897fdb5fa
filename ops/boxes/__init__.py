"""Operators for detection and segmentation: boxes, anchors, masks and polygons."""
