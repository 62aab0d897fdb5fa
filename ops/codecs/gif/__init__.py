"""GIF, decoded by Pillow: its first frame."""
