"""Video: files to sequences of frames."""
