"""DALI's automatic augmentations for the Python API: the schemes, and augmentations and policies of users' own."""
