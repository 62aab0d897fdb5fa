"""Scores of samples, which curation goes by: perceptual hashes, sharpness, entropy, JPEG quality, lengths of texts."""
