"""AVIF, HEIC and JPEG XL, each decoded by its library."""
