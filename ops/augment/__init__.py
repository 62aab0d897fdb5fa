"""AutoAugment, RandAugment, TrivialAugment: an operation code for each image instead of a batch split by operation."""
