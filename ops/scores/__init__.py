"""Operators that score samples, for curation (`keep_if`, `dali-run dedupe`): perceptual hashes, sharpness, entropy,
JPEG quality, lengths of texts."""
