"""AutoAugment, RandAugment and TrivialAugment: one operation code per image, instead of a batch that is split by
operation."""
