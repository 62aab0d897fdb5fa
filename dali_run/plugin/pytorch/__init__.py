"""Iterators that yield PyTorch tensors. They copy nothing: a tensor is a view of the batch, on the host and on a
GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import missing

try:
    import torch
except ModuleNotFoundError:
    raise missing("PyTorch", "torch", "'dali-run[torch]'") from None

from ...pipelines.python.iterators import BaseIterator, LastBatchPolicy, checked_output_map
from ...pipelines.python.pipeline import Pipeline
from ...pipelines.python.tensors import TensorList
from ...pipelines.python.torch_views import from_array, from_batch
from . import experimental, fn
from .functions import TorchPythonFunction
from .torch_utils import feed_ndarray, to_torch_tensor, to_torch_type

__all__ = [
    "DALIClassificationIterator",
    "DALIGenericIterator",
    "DALIRaggedIterator",
    "LastBatchPolicy",
    "TorchPythonFunction",
    "experimental",
    "feed_ndarray",
    "fn",
    "to_torch_tensor",
    "to_torch_type",
]


class DALIGenericIterator(BaseIterator):
    """Iterator that yields for each batch a list with a dict per pipeline: output name -> tensor (N, ...)."""

    def __init__(
        self,
        pipelines: Pipeline | Sequence[Pipeline],
        output_map: Sequence[str] | None = None,
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        dynamic_shape: bool = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        """``dynamic_shape`` is accepted for compatibility with DALI and ignored: shapes may always differ between
        batches. Raises ValueError."""
        del dynamic_shape
        super().__init__(pipelines, size, reader_name, auto_reset, fill_last_batch, last_batch_padded,
                         last_batch_policy, prepare_first_batch)  # fmt: skip
        self.output_map = checked_output_map(output_map, self.pipelines)

    def __next__(self) -> list[dict[str, torch.Tensor]]:
        batches = self.next_outputs()
        return [{k: self.convert(k, t) for k, t in zip(self.output_map, one, strict=True)} for one in batches]

    def convert(self, name: str, outputs: TensorList) -> Any:
        """Return one output of one pipeline as a tensor. Raises ValueError if its samples differ in shape."""
        return from_batch(outputs.batch)


class DALIClassificationIterator(DALIGenericIterator):
    """DALIGenericIterator for pipelines with two outputs, images and labels, which it names ``data`` and ``label``."""

    def __init__(
        self, pipelines: Pipeline | Sequence[Pipeline], size: int = -1, reader_name: str | None = None,
        auto_reset: bool | str | None = False, fill_last_batch: bool | None = None, dynamic_shape: bool = False,
        last_batch_padded: bool = False, last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(pipelines, ["data", "label"], size, reader_name, auto_reset, fill_last_batch, dynamic_shape,
                         last_batch_padded, last_batch_policy, prepare_first_batch)  # fmt: skip


class DALIRaggedIterator(DALIGenericIterator):
    """DALIGenericIterator for outputs whose samples differ in shape.

    ``output_types`` says for each output what the iterator yields: DENSE_TAG a dense tensor, SPARSE_LIST_TAG a list of
    tensors, SPARSE_COO_TAG one sparse tensor with coordinates and values.
    """

    DENSE_TAG = "dense"
    SPARSE_LIST_TAG = "sparse_list"
    SPARSE_COO_TAG = "sparse_coo"

    def __init__(
        self, pipelines: Pipeline | Sequence[Pipeline], output_map: Sequence[str] | None = None, size: int = -1,
        reader_name: str | None = None, output_types: Sequence[str] | None = None,
        auto_reset: bool | str | None = False, fill_last_batch: bool | None = None, dynamic_shape: bool = False,
        last_batch_padded: bool = False, last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(pipelines, output_map, size, reader_name, auto_reset, fill_last_batch, dynamic_shape,
                         last_batch_padded, last_batch_policy, prepare_first_batch)  # fmt: skip
        types = list(output_types) if output_types is not None else [self.DENSE_TAG] * len(self.output_map)
        if len(types) != len(self.output_map):
            raise ValueError(f"output_types has {len(types)} entries, but output_map has {len(self.output_map)}")
        unknown = set(types) - {self.DENSE_TAG, self.SPARSE_LIST_TAG, self.SPARSE_COO_TAG}
        if unknown:
            raise ValueError(
                f"output_types must be DENSE_TAG, SPARSE_LIST_TAG or SPARSE_COO_TAG, got {unknown.pop()!r}"
            )
        self._types = dict(zip(self.output_map, types, strict=True))

    def convert(self, name: str, outputs: TensorList) -> Any:
        """Return one output of one pipeline in its output type. Raises ValueError if the type is DENSE_TAG and the
        samples differ in shape."""
        kind = self._types[name]
        if kind == self.DENSE_TAG:
            return super().convert(name, outputs)
        samples = [from_array(outputs.at(i)) for i in range(len(outputs))]
        return samples if kind == self.SPARSE_LIST_TAG else _coordinates(samples)


def _coordinates(samples: list[torch.Tensor]) -> torch.Tensor:
    """Return all samples as one sparse tensor; the first coordinate of a value is the number of its sample."""
    coordinates, values = [], []
    for i, sample in enumerate(samples):
        at = torch.ones_like(sample, dtype=torch.bool).nonzero()
        coordinates.append(torch.cat([torch.full((len(at), 1), i, device=at.device), at], dim=1))
        values.append(sample.reshape(-1))
    extents = [max(s.shape[d] for s in samples) for d in range(samples[0].dim())]
    return torch.sparse_coo_tensor(
        torch.cat(coordinates).t(), torch.cat(values), (len(samples), *extents), check_invariants=False
    )
