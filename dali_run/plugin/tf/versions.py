"""DALI's functions that check the installed TensorFlow. They return True for TensorFlow 2.4.1 or newer, for
tf.distribute 2.5."""

from __future__ import annotations

import tensorflow as tf

MIN_TENSORFLOW_VERSION = "2.4.1"


def _at_least(minimum: tuple[int, ...]) -> bool:
    parts = [int(p) for p in tf.__version__.split("-")[0].split(".")[:3] if p.isdigit()]
    return tuple(parts) >= minimum


def dataset_compatible_tensorflow() -> bool:
    """Return whether DALIDataset works with the installed TensorFlow."""
    return _at_least((2, 4, 1))


def dataset_inputs_compatible_tensorflow() -> bool:
    """Return whether experimental.DALIDatasetWithInputs works with the installed TensorFlow."""
    return _at_least((2, 4, 1))


def dataset_distributed_compatible_tensorflow() -> bool:
    """Return whether tf.distribute works with DALIDataset."""
    return _at_least((2, 5, 0))
