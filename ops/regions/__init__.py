"""Parts of images that are filled, covered or put together: erase, grid_mask, paste, multi_paste, bbox_paste."""
