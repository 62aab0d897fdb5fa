"""DALI's iterator: a function that gives the next batch of a pipeline as tensors, in eager loops and in graphs."""

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
"""GPU batches that stay where they are after they were handed out: TensorFlow does not say when it has read them."""


def serialize_pipeline(pipeline: Pipeline) -> bytes:
    """`Pipeline.serialize`. Raises SpecError for what cannot be serialised."""
    return pipeline.serialize()


class _Running:
    """A pipeline that gives one batch after the other."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe
        self.kept: deque[Any] = deque(maxlen=_KEPT_BATCHES)

    def batches(self) -> list[Batch]:
        """The next batch of every output. Raises OutOfRangeError at the end, as TensorFlow's iterators do."""
        try:
            return [t.batch for t in self.pipe.run()]
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "the pipeline has ended") from None


_of_pipelines: weakref.WeakKeyDictionary[Pipeline, dict[Any, _Running]] = weakref.WeakKeyDictionary()
_of_texts: dict[Any, _Running] = {}


def DALIIterator() -> Any:  # noqa: N802 - DALI's name
    """The function that gives batches: `DALIIteratorWrapper`."""
    return DALIIteratorWrapper


def DALIRawIterator() -> Any:  # noqa: N802 - DALI's name
    """The same: what DALI has below its wrapper takes the same arguments here."""
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
    """The next batch of ``pipeline``, or of what was serialised here or by DALI: a tensor (N, ...) for each output, or
    a SparseTensor of all its samples where ``sparse`` says so.

    ``dtypes`` are the outputs' types, ``shapes`` their shapes, batch first; ``batch_size``, or the first shape, is the
    batch size where the pipeline has none. Called in a graph it is an operation that gives the next batch whenever it
    is run. Called eagerly, batches of a GPU come by DLPack. Raises ValueError, TypeError, and OutOfRangeError at the
    end.
    """
    del exec_dynamic, ignored
    if (pipeline is None) == (serialized_pipeline is None):
        raise ValueError("give either pipeline or serialized_pipeline")
    wanted = [tf.TensorSpec(_shape_of(shapes, k), t) for k, t in enumerate(dtypes)]
    flags = [bool(s) for s in sparse] + [False] * (len(wanted) - len(sparse))
    if batch_size < 0 and wanted and wanted[0].shape.rank:
        batch_size = -1 if wanted[0].shape[0] is None else int(wanted[0].shape[0])
    running = _running(pipeline, serialized_pipeline, {
        "prefetch_queue_depth": prefetch_queue_depth,
        **own_arguments(batch_size if batch_size > 0 else None, num_threads if num_threads > 0 else None, device_id),
    })  # fmt: skip
    if running.pipe.num_outputs != len(wanted):
        raise ValueError(f"there are {len(wanted)} dtypes for the pipeline's {running.pipe.num_outputs} outputs")
    if tf.executing_eagerly():
        return [_eager(running, k, b, w, f) for k, (b, w, f) in enumerate(zip(running.batches(), wanted, flags,
                                                                             strict=True))]  # fmt: skip
    return _operation(running, wanted, flags)


def _shape_of(shapes: Any, k: int) -> Any:
    """The shape of output ``k``; one shape for all where it is no list of shapes."""
    if shapes is None or (isinstance(shapes, (list, tuple)) and not shapes):
        return None
    several = isinstance(shapes, (list, tuple)) and any(isinstance(s, (list, tuple, tf.TensorShape)) for s in shapes)
    if not several:
        return shapes
    return shapes[k] if k < len(shapes) and shapes[k] != () else None


def _running(pipeline: Pipeline | None, text: bytes | None, arguments: dict[str, Any]) -> _Running:
    """The pipeline at work: one for each pipeline and its arguments."""
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


def _eager(running: _Running, number: int, batch: Batch, wanted: tf.TensorSpec, sparse: bool) -> Any:
    if sparse:
        return tf.SparseTensor(*_coordinates(batch, number, wanted))
    if batch.on_host:
        return tf.constant(dense(number, batch, wanted))
    array = batch.dense()
    running.kept.append(array)
    return tf.experimental.dlpack.from_dlpack(lent(array, running).__dlpack__())


def _operation(running: _Running, wanted: Sequence[tf.TensorSpec], flags: Sequence[bool]) -> list[Any]:
    """The next batch as an operation of the graph that is being built."""
    types: list[Any] = []
    for w, f in zip(wanted, flags, strict=True):
        types += [tf.int64, w.dtype, tf.int64] if f else [w.dtype]

    def next_batch() -> list[Any]:
        made: list[Any] = []
        for k, (b, w, f) in enumerate(zip(running.batches(), wanted, flags, strict=True)):
            made += _coordinates(b, k, w) if f else [dense(k, b, w)]
        return made

    flat = list(tf.numpy_function(next_batch, [], types, stateful=True))
    out: list[Any] = []
    for w, f in zip(wanted, flags, strict=True):
        if f:
            out.append(tf.SparseTensor(flat.pop(0), flat.pop(0), flat.pop(0)))
        else:
            out.append(tf.ensure_shape(flat.pop(0), w.shape))
    return out


def _coordinates(batch: Batch, number: int, wanted: tf.TensorSpec) -> list[Any]:
    """All samples as a sparse tensor: coordinates (sample, ...), values, and the extents that hold all of them."""
    host = batch if batch.on_host else batch.replace(data=batch.data.get())
    samples = [host.sample(k) for k in range(len(host))]
    if host.dtype != wanted.dtype.as_numpy_dtype:
        raise TypeError(f"output {number} is {host.dtype}; dtypes promises {wanted.dtype.name}")
    where = [np.argwhere(np.ones(s.shape, bool)) for s in samples]
    rows = [np.column_stack([np.full(len(w), k, np.int64), w]) for k, w in enumerate(where)]
    extents = [len(samples), *(max(s.shape[d] for s in samples) for d in range(host.ndim))]
    return [np.concatenate(rows), np.concatenate([s.reshape(-1) for s in samples]), np.array(extents, np.int64)]
