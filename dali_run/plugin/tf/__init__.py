"""TensorFlow: pipelines as tf.data.Dataset, and DALI's iterator for graphs and eager loops."""

from __future__ import annotations

from .. import missing

try:
    import tensorflow  # noqa: F401
except ModuleNotFoundError:
    raise missing("TensorFlow", "tensorflow", "tensorflow") from None

from . import experimental
from .dataset import DALIDataset, dataset_options
from .iterator import DALIIterator, DALIIteratorWrapper, DALIRawIterator, serialize_pipeline
from .versions import (
    MIN_TENSORFLOW_VERSION,
    dataset_compatible_tensorflow,
    dataset_distributed_compatible_tensorflow,
    dataset_inputs_compatible_tensorflow,
)

__all__ = [
    "MIN_TENSORFLOW_VERSION",
    "DALIDataset",
    "DALIIterator",
    "DALIIteratorWrapper",
    "DALIRawIterator",
    "dataset_compatible_tensorflow",
    "dataset_distributed_compatible_tensorflow",
    "dataset_inputs_compatible_tensorflow",
    "dataset_options",
    "experimental",
    "serialize_pipeline",
]
