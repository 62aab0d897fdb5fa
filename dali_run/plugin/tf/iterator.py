"""DALI's iterator: a function that returns the next batch of a pipeline as tensors, in eager loops and in graphs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...ops.batch import Batch
from ...pipelines.python.arrays import lent
from ...pipelines.python.pipeline import Pipeline
from ...pipelines.python.recreate import recreate
from .dataset import dense, own_arguments

_KEPT_BATCHES = 3
"""Number of the latest GPU batches that stay in memory, because TensorFlow does not say when it has read a batch."""


def serialize_pipeline(pipeline: Pipeline) -> bytes:
    """Return `Pipeline.serialize`. Raises SpecError if the pipeline cannot be serialised."""
    return pipeline.serialize()


class _Running:
    """A pipeline that the iterator runs, with the GPU batches that TensorFlow may still read."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe
        self.kept: deque[Any] = deque(maxlen=_KEPT_BATCHES)

    def batches(self) -> list[Batch]:
        """Return the next batch of every output. Raises OutOfRangeError at the end, as TensorFlow's iterators do."""
        try:
            return [t.batch for t in self.pipe.run()]
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "the pipeline has ended") from None


_of_pipelines: weakref.WeakKeyDictionary[Pipeline, dict[Any, _Running]] = weakref.WeakKeyDictionary()
_of_texts: dict[Any, _Running] = {}


def DALIIterator() -> Any:  # noqa: N802 - DALI's name
    """Return `DALIIteratorWrapper`, the function that returns batches."""
    return DALIIteratorWrapper


def DALIRawIterator() -> Any:  # noqa: N802 - DALI's name
    """Return `DALIIteratorWrapper`: DALI's function below its wrapper takes the same arguments here."""
    return DALIIteratorWrapper


def DALIIteratorWrapper(  # noqa: N802 - DALI's name
    pipeline: Pipeline | None = None,
    serialized_pipeline: bytes | None = None,
    sparse: Sequence[bool] = (),
    shapes: Any = (),
    dtypes: Sequence[Any] = (),
    batch_size: int = -1,
    prefetch_queue_depth: Any = 2,
    exec_dynamic: bool | None = None,
    num_threads: int = -1,
    device_id: int | None = -1,
    **ignored: Any,
) -> list[Any]:
    """Return the next batch of ``pipeline``, or of a pipeline that this package or DALI serialised.

    The result has one entry per output: a tensor (N, ...), or a SparseTensor of all samples if ``sparse`` is true for
    it. ``dtypes`` are the types of the outputs, ``shapes`` their shapes, batch dimension first. If the pipeline has no
    batch size, it gets ``batch_size``, or that of the first shape. In a graph, the call adds an operation that returns
    the next batch whenever it runs. In eager mode, batches on a GPU are passed by DLPack. Raises ValueError, TypeError,
    and OutOfRangeError at the end.
    """
    del exec_dynamic, ignored
    if (pipeline is None) == (serialized_pipeline is None):
        raise ValueError("give pipeline or serialized_pipeline, not both")
    specs = [tf.TensorSpec(_shape_of(shapes, k), t) for k, t in enumerate(dtypes)]
    flags = [bool(s) for s in sparse] + [False] * (len(specs) - len(sparse))
    if batch_size < 0 and specs and specs[0].shape.rank:
        batch_size = -1 if specs[0].shape[0] is None else int(specs[0].shape[0])
    running = _running(pipeline, serialized_pipeline, {
        "prefetch_queue_depth": prefetch_queue_depth,
        **own_arguments(batch_size if batch_size > 0 else None, num_threads if num_threads > 0 else None, device_id),
    })  # fmt: skip
    if running.pipe.num_outputs != len(specs):
        raise ValueError(f"there are {len(specs)} dtypes for the pipeline's {running.pipe.num_outputs} outputs")
    if tf.executing_eagerly():
        return [_eager(running, k, b, w, f) for k, (b, w, f) in enumerate(zip(running.batches(), specs, flags,
                                                                             strict=True))]  # fmt: skip
    return _operation(running, specs, flags)


def _shape_of(shapes: Any, k: int) -> Any:
    """Return the shape of output ``k``. A single shape is used for all outputs."""
    if shapes is None or (isinstance(shapes, (list, tuple)) and not shapes):
        return None
    several = isinstance(shapes, (list, tuple)) and any(isinstance(s, (list, tuple, tf.TensorShape)) for s in shapes)
    if not several:
        return shapes
    return shapes[k] if k < len(shapes) and shapes[k] != () else None


def _running(pipeline: Pipeline | None, text: bytes | None, arguments: dict[str, Any]) -> _Running:
    """Return the running pipeline for a pipeline, or a serialised one, and its arguments; create it on the first
    call."""
    key = repr(sorted(arguments.items()))
    if pipeline is not None:
        own = _of_pipelines.setdefault(pipeline, {})
        if key not in own:
            own[key] = _Running(recreate(pipeline, **arguments))
        return own[key]
    assert text is not None
    if (text, key) not in _of_texts:
        _of_texts[text, key] = _Running(Pipeline.deserialize(text, **arguments))
    return _of_texts[text, key]


def _eager(running: _Running, number: int, batch: Batch, spec: tf.TensorSpec, sparse: bool) -> Any:
    if sparse:
        return tf.SparseTensor(*_coordinates(batch, number, spec))
    if batch.on_host:
        return tf.constant(dense(number, batch, spec))
    array = batch.dense()
    running.kept.append(array)
    return tf.experimental.dlpack.from_dlpack(lent(array, running).__dlpack__())


def _operation(running: _Running, specs: Sequence[tf.TensorSpec], flags: Sequence[bool]) -> list[Any]:
    """Add an operation to the current graph that returns the next batch."""
    types: list[Any] = []
    for w, f in zip(specs, flags, strict=True):
        types += [tf.int64, w.dtype, tf.int64] if f else [w.dtype]

    def next_batch() -> list[Any]:
        values: list[Any] = []
        for k, (b, w, f) in enumerate(zip(running.batches(), specs, flags, strict=True)):
            values += _coordinates(b, k, w) if f else [dense(k, b, w)]
        return values

    flat = list(tf.numpy_function(next_batch, [], types, stateful=True))
    out: list[Any] = []
    for w, f in zip(specs, flags, strict=True):
        if f:
            out.append(tf.SparseTensor(flat.pop(0), flat.pop(0), flat.pop(0)))
        else:
            out.append(tf.ensure_shape(flat.pop(0), w.shape))
    return out


def _coordinates(batch: Batch, number: int, spec: tf.TensorSpec) -> list[Any]:
    """Return all samples as the parts of a sparse tensor: coordinates (sample, ...), values, and extents that hold
    every sample."""
    host = batch if batch.on_host else batch.replace(data=batch.data.get())
    samples = [host.sample(k) for k in range(len(host))]
    if host.dtype != spec.dtype.as_numpy_dtype:
        raise TypeError(f"output {number} is {host.dtype}, but dtypes promises {spec.dtype.name}")
    coordinates = [np.argwhere(np.ones(s.shape, bool)) for s in samples]
    rows = [np.column_stack([np.full(len(w), k, np.int64), w]) for k, w in enumerate(coordinates)]
    extents = [len(samples), *(max(s.shape[d] for s in samples) for d in range(host.ndim))]
    return [np.concatenate(rows), np.concatenate([s.reshape(-1) for s in samples]), np.array(extents, np.int64)]
