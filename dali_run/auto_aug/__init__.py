"""DALI's automatic augmentations: auto_augment, rand_augment, trivial_augment, augmentations, core."""
