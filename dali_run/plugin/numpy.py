"""Iterators that yield NumPy arrays, for programs without a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..pipelines.python.iterators import BaseIterator, LastBatchPolicy, checked_output_map
from ..pipelines.python.pipeline import Pipeline
from ..pipelines.python.tensors import TensorList

__all__ = ["DALIGenericIterator", "DALIRaggedIterator", "LastBatchPolicy"]


class DALIGenericIterator(BaseIterator):
    """Iterator that yields for each batch a list with a dict per pipeline: output name -> array (N, ...), a view of the
    batch."""

    def __init__(
        self,
        pipelines: Pipeline | Sequence[Pipeline],
        output_map: Sequence[str] | None = None,
        *args: Any,
        **arguments: Any,
    ) -> None:
        """``args`` and ``arguments`` are the arguments of BaseIterator from ``size`` on. Raises ValueError."""
        super().__init__(pipelines, *args, **arguments)
        self.output_map = checked_output_map(output_map, self.pipelines)

    def __next__(self) -> list[dict[str, Any]]:
        batches = self.next_outputs()
        return [{k: self.convert(t) for k, t in zip(self.output_map, one, strict=True)} for one in batches]

    def convert(self, outputs: TensorList) -> Any:
        """Return one output of one pipeline as an array. Raises ValueError if its samples differ in shape."""
        return outputs.as_cpu().as_array()


class DALIRaggedIterator(DALIGenericIterator):
    """DALIGenericIterator that yields a list of arrays for an output whose samples differ in shape."""

    def convert(self, outputs: TensorList) -> Any:
        """Return one output of one pipeline: an array, or a list of arrays if its samples differ in shape."""
        host = outputs.as_cpu()
        return host.as_array() if host.batch.is_uniform else [host.at(i) for i in range(len(host))]
