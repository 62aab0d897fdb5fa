"""Container formats, one module each, and the framing that they share."""
