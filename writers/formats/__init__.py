"""One container format a file, and the framing that they share."""
