"""What cameras and codecs do to images: noise, JPEG's losses."""
