"""Read sequences of frames from videos: files, videos that the user's program provides, resized frames."""
