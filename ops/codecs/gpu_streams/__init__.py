"""Decompression of streams to rows of samples, and conversion of rows to pixels, on a GPU. Shared by PNG and TIFF."""
