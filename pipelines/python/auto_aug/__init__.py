"""DALI's automatic augmentations for the Python API: RandAugment, TrivialAugment and AutoAugment, with DALI's or the
user's augmentations."""
