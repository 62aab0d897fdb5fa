"""Video operators: decode files to sequences of frames, cut files."""
