"""Audio: decoding, resampling, and features from spectra."""
