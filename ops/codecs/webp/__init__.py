"""WebP, by libwebp and by our kernels."""
