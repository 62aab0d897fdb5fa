"""Nodes of torchdata's graphs: readers as sources, functions on what they give, tensors of PyTorch's at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    import torchdata.nodes as tn
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "nodes need torchdata, which is not installed: pip install torchdata", name="torchdata"
    ) from None

from ...pipelines.dynamic.readers import Reader as DynamicReader

__all__ = ["DictMapper", "Reader", "ToTorch"]


class Reader(tn.BaseNode):  # type: ignore[misc]  # torchdata has no types
    """The outputs of a reader, as mappings by name. `reset` begins an epoch, or goes on from a state."""

    def __init__(
        self,
        reader_type: type[DynamicReader],
        *,
        batch_size: int | None,
        output_names: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` are those of ``reader_type``. Two outputs are called data and label, unless ``output_names`` says
        otherwise; readers whose outputs have names keep those. Samples come one by one without ``batch_size``."""
        super().__init__()
        self._reader = reader_type(**kwargs)
        self._batch_size = batch_size
        self._names = None if output_names is None else tuple(output_names)
        self._epoch: Any = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or finish the one of ``initial_state``."""
        super().reset(initial_state)
        if initial_state is not None:
            self._reader.set_state(initial_state["reader"])
        self._epoch = self._reader.next_epoch(batch_size=self._batch_size)

    def next(self) -> dict[str, Any]:
        """The next outputs. Raises StopIteration after the epoch, ValueError where there are other than were named."""
        given = next(self._epoch)
        if isinstance(given, Mapping):
            return dict(given)
        names = self._names or (("data", "label") if len(given) == 2 else ())
        if len(names) != len(given):
            raise ValueError(f"the reader has {len(given)} outputs, output_names has {len(names)}; name each of them")
        return dict(zip(names, given, strict=True))

    def get_state(self) -> dict[str, Any]:
        """Where the reader is."""
        return {"reader": str(self._reader.get_state())}

    def get_metadata(self) -> dict[str, Any]:
        """Sizes and sharding of the data set."""
        return self._reader.get_metadata()


class DictMapper(tn.BaseNode):  # type: ignore[misc]
    """A source's mappings with a function of one entry in its place."""

    def __init__(self, source: Any, map_fn: Callable[[Any], Any], key: str = "data") -> None:
        """``map_fn`` takes and gives a Tensor or Batch, which ``key`` stands for."""
        super().__init__()
        self._source, self._function, self._key = source, map_fn, key

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """As the source."""
        super().reset(initial_state)
        self._source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> dict[str, Any]:
        """The next mapping."""
        given = next(self._source)
        return {**given, self._key: self._function(given[self._key])}

    def get_state(self) -> dict[str, Any]:
        """The source's."""
        return {"source": self._source.state_dict()}


class ToTorch(tn.BaseNode):  # type: ignore[misc]
    """A source's mappings as tuples of PyTorch's tensors, which share their memory where that is possible."""

    def __init__(self, source: Any, output_stream: Any = None) -> None:
        """``output_stream`` is taken for DALI's sake: data on a GPU is complete when it is given."""
        super().__init__()
        del output_stream
        self._source = source

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """As the source."""
        super().reset(initial_state)
        self._source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> tuple[Any, ...]:
        """The next tensors. Raises ValueError where the samples of a batch differ in shape."""
        return tuple(value.torch() for value in next(self._source).values())

    def get_state(self) -> dict[str, Any]:
        """The source's."""
        return {"source": self._source.state_dict()}
