"""JPEG 2000: a built-in decoder on GPUs for the common variants, otherwise by Pillow's OpenJPEG."""
