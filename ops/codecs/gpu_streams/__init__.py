"""Streams, rows and pixels on a GPU: what the decoders of PNG and TIFF share."""
