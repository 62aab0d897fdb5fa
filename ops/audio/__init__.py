"""Audio operators: decoding, encoding, resampling, spectra and features."""
