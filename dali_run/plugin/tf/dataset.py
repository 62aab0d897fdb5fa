"""Pipelines as tf.data.Dataset. Every iteration over a dataset runs a pipeline of its own, from the beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...ops.batch import Batch
from ...ops.errors import RaggedError
from ...pipelines.python.pipeline import Pipeline
from ...pipelines.python.recreate import recreate
from ...pipelines.user_warnings import warn
from ...readers.external_source import ExternalSource


def dataset_options() -> tf.data.Options:
    """Options without TensorFlow's own rewriting and tuning: a pipeline sees to its threads and queues itself."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return options


class _Dataset(tf.data.Dataset):  # type: ignore[misc]
    """The common base of both kinds of datasets."""

    def __init__(self, made: tf.data.Dataset) -> None:
        self._made = made
        super().__init__(made._variant_tensor)

    def _inputs(self) -> list[Any]:
        return [self._made]

    @property
    def element_spec(self) -> Any:
        """Types and shapes of an element: a tuple with a tensor for each output."""
        return self._made.element_spec


class DALIDataset(_Dataset):
    """The batches of a pipeline as a tf.data.Dataset: tuples with a tensor (N, ...) for each output.

    As long as the pipeline goes on, which with readers is without an end: ``take``, or ``steps_per_epoch`` of Keras,
    say where an epoch ends. Batches of a GPU come through the host.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        output_dtypes: Any = None,
        output_shapes: Any = None,
        fail_on_device_mismatch: bool = True,
        *,
        batch_size: int | None = None,
        num_threads: int | None = None,
        device_id: int | None = -1,
        exec_separated: bool = False,
        exec_dynamic: bool = False,
        prefetch_queue_depth: int = 2,
        cpu_prefetch_queue_depth: int = 2,
        gpu_prefetch_queue_depth: int = 2,
        dtypes: Any = None,
        shapes: Any = None,
    ) -> None:
        """``output_dtypes`` and ``output_shapes`` are one tf.DType and one shape, batch first, or a tuple for the
        outputs. ``batch_size``, ``num_threads`` and ``device_id`` are the pipeline's unless given (None of the last is
        the CPU). ``fail_on_device_mismatch`` and ``exec_dynamic`` are taken without effect.

        Raises TypeError for types that are none, ValueError for a pipeline with external_source.
        """
        del fail_on_device_mismatch, exec_dynamic
        fed = _external_sources(pipeline)
        if fed:
            raise ValueError(f"the pipeline has external_source ({', '.join(fed)}): use "
                             "experimental.DALIDatasetWithInputs")  # fmt: skip
        depth = queue_depth(exec_separated, prefetch_queue_depth, cpu_prefetch_queue_depth, gpu_prefetch_queue_depth)
        arguments = {"prefetch_queue_depth": depth, **own_arguments(batch_size, num_threads, device_id)}
        types = _newer("dtypes", output_dtypes, dtypes)
        super().__init__(generated(pipeline, arguments, types, _newer("shapes", output_shapes, shapes), {}))


def queue_depth(separated: bool, depth: int, cpu: int, gpu: int) -> Any:
    """``prefetch_queue_depth`` of a Pipeline."""
    return {"cpu_size": cpu, "gpu_size": gpu} if separated else depth


def own_arguments(batch_size: int | None, num_threads: int | None, device_id: int | None) -> dict[str, Any]:
    """Those of the three that were given."""
    made: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if num_threads is not None:
        made["num_threads"] = num_threads
    if device_id != -1:
        made["device_id"] = device_id
    return made


def _newer(name: str, given: Any, older: Any) -> Any:
    """``output_<name>``, or what was given by its older name. Raises ValueError for both."""
    if older is None:
        return given
    if given is not None:
        raise ValueError(f"{name} is the older name of output_{name}: give one of them")
    warn(f"{name} is the older name of output_{name}", DeprecationWarning)
    return tuple(older) if isinstance(older, list) else older


def _external_sources(pipeline: Pipeline) -> dict[str, ExternalSource]:
    pipeline._named_outputs()
    nodes = pipeline._definition.builder.nodes
    return {n.name: n.op for n in nodes if isinstance(n.op, ExternalSource)}


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _signature(output_dtypes: Any, output_shapes: Any, outputs: int) -> tuple[tf.TensorSpec, ...]:
    """Types and shapes of an element. Raises TypeError and ValueError."""
    dtypes = _tuple(output_dtypes)
    if not all(isinstance(d, tf.DType) for d in dtypes):
        raise TypeError(f"output_dtypes is a tf.DType or a tuple of them, got {output_dtypes!r}")
    single = not isinstance(output_dtypes, tuple)
    shapes = (None,) * len(dtypes) if output_shapes is None else (output_shapes,) if single else tuple(output_shapes)
    if len(shapes) != len(dtypes):
        raise ValueError(f"there are {len(dtypes)} output_dtypes and {len(shapes)} output_shapes")
    if len(dtypes) != outputs:
        raise ValueError(f"there are {len(dtypes)} output_dtypes for the pipeline's {outputs} outputs")
    return tuple(tf.TensorSpec(s, d) for s, d in zip(shapes, dtypes, strict=True))


def generated(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    output_dtypes: Any,
    output_shapes: Any,
    feeds: Mapping[str, Callable[[int], Iterator[Any]]],
) -> tf.data.Dataset:
    """The dataset of ``pipeline`` with ``arguments``; ``feeds`` give batches of a given size for external_sources."""
    signature = _signature(output_dtypes, output_shapes, pipeline.num_outputs)

    def batches() -> Iterator[tuple[Any, ...]]:
        extra = {"prefetch_queue_depth": 1} if feeds else {}
        pipe = recreate(pipeline, **{**arguments, **extra})
        try:
            inputs = {name: feed(pipe.max_batch_size) for name, feed in feeds.items()}
            while True:
                try:
                    outputs = pipe.run(**{name: next(given) for name, given in inputs.items()})
                except StopIteration:
                    return
                yield tuple(dense(k, t.batch, s) for k, (t, s) in enumerate(zip(outputs, signature, strict=True)))
        finally:
            pipe.close()

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def dense(number: int, batch: Batch, wanted: tf.TensorSpec) -> Any:
    """Output ``number`` as a NumPy array of the promised type and shape. Raises TypeError and ValueError."""
    try:
        array = batch.dense()
    except RaggedError:
        raise ValueError(f"output {number}: its samples differ in shape: resize or pad them") from None
    host = array if isinstance(array, np.ndarray) else array.get()
    if host.dtype != wanted.dtype.as_numpy_dtype:
        raise TypeError(f"output {number} is {host.dtype}; output_dtypes promises {wanted.dtype.name}")
    if not wanted.shape.is_compatible_with(host.shape):
        raise ValueError(f"output {number} has the shape {host.shape}; output_shapes promises {wanted.shape}")
    return host


# -- datasets as inputs -----------------------------------------------------------------------------------------------


class Input:
    """A dataset as an input of DALIDatasetWithInputs, with its layout; ``batch``: its elements are batches."""

    def __init__(self, dataset: tf.data.Dataset, *, layout: str | None = None, batch: bool | None = False) -> None:
        """Raises TypeError for what is no dataset."""
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(f"an input is a tf.data.Dataset, got {dataset!r} ({type(dataset).__name__})")
        self.dataset = dataset
        self.layout = layout
        self.batch = batch


class DALIDatasetWithInputs(_Dataset):
    """DALIDataset of a pipeline with external_sources: fed by other datasets, or by sources of their own.

    The dataset ends where one of its inputs ends; samples that are left then make a smaller batch.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        output_dtypes: Any = None,
        output_shapes: Any = None,
        fail_on_device_mismatch: bool = True,
        *,
        input_datasets: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        num_threads: int | None = None,
        device_id: int | None = -1,
        exec_separated: bool = False,
        exec_dynamic: bool = False,
        prefetch_queue_depth: int = 2,
        cpu_prefetch_queue_depth: int = 2,
        gpu_prefetch_queue_depth: int = 2,
        dtypes: Any = None,
        shapes: Any = None,
    ) -> None:
        """``input_datasets`` maps names of external_sources to datasets, whose elements are samples, or to `Input`.
        Other arguments as of DALIDataset. Raises TypeError, and ValueError where inputs and external_sources do not
        fit together."""
        del fail_on_device_mismatch, exec_dynamic
        sources = _external_sources(pipeline)
        given = {n: d if isinstance(d, Input) else Input(d) for n, d in (input_datasets or {}).items()}
        _check_inputs(given, sources)
        feeds = {name: _feed(one, sources[name]) for name, one in given.items()}
        depth = queue_depth(exec_separated, prefetch_queue_depth, cpu_prefetch_queue_depth, gpu_prefetch_queue_depth)
        arguments = {"prefetch_queue_depth": depth, **own_arguments(batch_size, num_threads, device_id)}
        types = _newer("dtypes", output_dtypes, dtypes)
        super().__init__(generated(pipeline, arguments, types, _newer("shapes", output_shapes, shapes), feeds))


def _check_inputs(given: Mapping[str, Input], sources: Mapping[str, ExternalSource]) -> None:
    unknown = [n for n in given if n not in sources]
    if unknown:
        raise ValueError(f"there is no external_source {unknown[0]!r}; there are: {', '.join(sources) or 'none'}")
    for name, op in sources.items():
        if op.source is None and name not in given:
            raise ValueError(f"external_source {name!r} has no source, and no input in input_datasets")
        if op.source is not None and name in given:
            raise ValueError(f"external_source {name!r} has a source of its own, and an input in input_datasets")
        if name in given and given[name].layout and op.layout and given[name].layout != op.layout:
            raise ValueError(f"input {name!r} has the layout {given[name].layout!r}, its external_source {op.layout!r}")


def _feed(given: Input, op: ExternalSource) -> Callable[[int], Iterator[Any]]:
    """Batches for one external_source, by the batch size."""
    batched = op.batch if given.batch is None else given.batch
    layout = given.layout or op.layout or None

    def feed(batch_size: int) -> Iterator[Any]:
        elements = iter(given.dataset.as_numpy_iterator())
        while True:
            rows: Sequence[Any]
            if batched:
                rows = [next_or_none(elements)]
                if rows[0] is None:
                    return
                yield _named(rows[0], layout)
                continue
            rows = [e for _ in range(batch_size) if (e := next_or_none(elements)) is not None]
            if not rows:
                return
            yield _named(list(rows), layout)

    return feed


def next_or_none(elements: Iterator[Any]) -> Any:
    """The next element as an array; None at the end. Raises TypeError for an element that is no single tensor."""
    for element in elements:
        if isinstance(element, (tuple, dict)):
            raise TypeError("an input's elements are single tensors; take the dataset apart with map first")
        return np.frombuffer(element, np.uint8) if isinstance(element, bytes) else np.asarray(element)
    return None


def _named(data: Any, layout: str | None) -> Any:
    """The data of a batch; with its layout, where there is one."""
    if layout is None:
        return data
    from ...pipelines.python.tensors import TensorListCPU

    return TensorListCPU(data, layout)
