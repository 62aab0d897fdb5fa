"""Single operations as torchvision, Pillow, OpenCV and albumentations do them, for models trained with those."""
