"""`bench` and `tune`: settings and peers, measured in turns."""
