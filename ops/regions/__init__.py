"""Operators that fill, cover or combine regions of images: erase, grid_mask, paste, multi_paste, bbox_paste."""
