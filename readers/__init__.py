"""Where samples come from: an index and a fetch for each format."""
