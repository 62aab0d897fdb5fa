"""Nodes for the graphs of torchdata: readers as sources, functions applied to their outputs, and conversion to PyTorch
tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    import torchdata.nodes as tn
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the nodes need torchdata, which is not installed: pip install torchdata", name="torchdata"
    ) from None

from ...pipelines.dynamic.readers import Reader as DynamicReader

__all__ = ["DictMapper", "Reader", "ToTorch"]


class Reader(tn.BaseNode):  # type: ignore[misc]  # torchdata has no types
    """Source node that yields the outputs of a reader as mappings from output name to value."""

    def __init__(
        self,
        reader_type: type[DynamicReader],
        *,
        batch_size: int | None,
        output_names: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` are the arguments of ``reader_type``.

        If the reader's outputs have names, the mappings use them; otherwise ``output_names`` names them, by default
        data and label for two outputs. With ``batch_size`` None the node yields single samples.
        """
        super().__init__()
        self._reader = reader_type(**kwargs)
        self._batch_size = batch_size
        self._names = None if output_names is None else tuple(output_names)
        self._epoch: Any = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or continue the epoch of ``initial_state``."""
        super().reset(initial_state)
        if initial_state is not None:
            self._reader.set_state(initial_state["reader"])
        self._epoch = self._reader.next_epoch(batch_size=self._batch_size)

    def next(self) -> dict[str, Any]:
        """Return the next outputs.

        Raises StopIteration at the end of the epoch, ValueError if ``output_names`` has another number of names than
        the reader has outputs.
        """
        outputs = next(self._epoch)
        if isinstance(outputs, Mapping):
            return dict(outputs)
        names = self._names or (("data", "label") if len(outputs) == 2 else ())
        if len(names) != len(outputs):
            raise ValueError(f"the reader has {len(outputs)} outputs, output_names has {len(names)}; name each of them")
        return dict(zip(names, outputs, strict=True))

    def get_state(self) -> dict[str, Any]:
        """Return the state of the reader."""
        return {"reader": str(self._reader.get_state())}

    def get_metadata(self) -> dict[str, Any]:
        """Return the sizes and the sharding of the data set."""
        return self._reader.get_metadata()


class DictMapper(tn.BaseNode):  # type: ignore[misc]
    """Node that applies a function to one entry of each mapping of its source."""

    def __init__(self, source: Any, map_fn: Callable[[Any], Any], key: str = "data") -> None:
        """``map_fn`` takes and returns a Tensor or a Batch; its result replaces the entry ``key``."""
        super().__init__()
        self._source, self._function, self._key = source, map_fn, key

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Reset the source, to its part of ``initial_state`` if there is one."""
        super().reset(initial_state)
        self._source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> dict[str, Any]:
        """Return the next mapping of the source, with the entry replaced."""
        mapping = next(self._source)
        return {**mapping, self._key: self._function(mapping[self._key])}

    def get_state(self) -> dict[str, Any]:
        """Return the state of the source."""
        return {"source": self._source.state_dict()}


class ToTorch(tn.BaseNode):  # type: ignore[misc]
    """Node that turns each mapping of its source into a tuple of PyTorch tensors, which share memory with it if
    possible."""

    def __init__(self, source: Any, output_stream: Any = None) -> None:
        """``output_stream`` is accepted for compatibility with DALI and ignored: data on a GPU is complete when `next`
        returns."""
        super().__init__()
        del output_stream
        self._source = source

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Reset the source, to its part of ``initial_state`` if there is one."""
        super().reset(initial_state)
        self._source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> tuple[Any, ...]:
        """Return the next tensors. Raises ValueError if the samples of a batch differ in shape."""
        return tuple(value.torch() for value in next(self._source).values())

    def get_state(self) -> dict[str, Any]:
        """Return the state of the source."""
        return {"source": self._source.state_dict()}
