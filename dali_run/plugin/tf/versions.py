"""DALI's questions about the TensorFlow that is installed. Here the answer is one: TensorFlow 2.4.1 or newer."""

from __future__ import annotations

import tensorflow as tf

MIN_TENSORFLOW_VERSION = "2.4.1"


def _at_least(wanted: tuple[int, ...]) -> bool:
    parts = [int(p) for p in tf.__version__.split("-")[0].split(".")[:3] if p.isdigit()]
    return tuple(parts) >= wanted


def dataset_compatible_tensorflow() -> bool:
    """DALIDataset works with it."""
    return _at_least((2, 4, 1))


def dataset_inputs_compatible_tensorflow() -> bool:
    """experimental.DALIDatasetWithInputs works with it."""
    return _at_least((2, 4, 1))


def dataset_distributed_compatible_tensorflow() -> bool:
    """tf.distribute works with DALIDataset."""
    return _at_least((2, 5, 0))
