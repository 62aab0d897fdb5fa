"""WebP: libwebp on the CPU, built-in kernels on GPUs."""
