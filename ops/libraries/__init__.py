"""Single operations with exactly the results of torchvision, Pillow, OpenCV and albumentations, for models that were
trained with these."""
