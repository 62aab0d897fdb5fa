"""Decoders and encoders of images, and the choice of the one that decodes each sample."""
