"""JPEG: headers, the baseline decoder on CPU and GPU, the GPU encoder, nvJPEG."""
