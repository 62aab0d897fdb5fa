"""Detection and segmentation: boxes, anchors, masks and polygons."""
