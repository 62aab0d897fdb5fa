"""Pipelines as tf.data.Dataset. Every iteration over a dataset creates a pipeline and runs it from the beginning."""

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
    """Return dataset options that turn off TensorFlow's optimizations and tuning, because a pipeline manages its own
    threads and queues."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return options


class _Dataset(tf.data.Dataset):  # type: ignore[misc]
    """Base class of both kinds of datasets."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._made = dataset
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[Any]:
        return [self._made]

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element: a tuple with a tensor for each output."""
        return self._made.element_spec


class DALIDataset(_Dataset):
    """The batches of a pipeline as a tf.data.Dataset: tuples with a tensor (N, ...) for each output.

    The dataset ends when the pipeline ends; a pipeline with readers never ends, so that ``take``, or
    ``steps_per_epoch`` of Keras, must end an epoch. Batches on a GPU are copied to the host.
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
        """``output_dtypes`` and ``output_shapes`` are one tf.DType and one shape, batch dimension first, or tuples with
        one per output.

        ``batch_size``, ``num_threads`` and ``device_id`` replace those of the pipeline; ``device_id`` None is the CPU.
        ``fail_on_device_mismatch`` and ``exec_dynamic`` have no effect. Raises TypeError if ``output_dtypes`` are not
        types, ValueError for a pipeline with external_source.
        """
        del fail_on_device_mismatch, exec_dynamic
        sources = _external_sources(pipeline)
        if sources:
            raise ValueError(f"the pipeline has an external_source ({', '.join(sources)}): use "
                             "experimental.DALIDatasetWithInputs")  # fmt: skip
        depth = queue_depth(exec_separated, prefetch_queue_depth, cpu_prefetch_queue_depth, gpu_prefetch_queue_depth)
        arguments = {"prefetch_queue_depth": depth, **own_arguments(batch_size, num_threads, device_id)}
        types = _newer("dtypes", output_dtypes, dtypes)
        super().__init__(generated(pipeline, arguments, types, _newer("shapes", output_shapes, shapes), {}))


def queue_depth(separated: bool, depth: int, cpu: int, gpu: int) -> Any:
    """Return the argument ``prefetch_queue_depth`` of a Pipeline."""
    return {"cpu_size": cpu, "gpu_size": gpu} if separated else depth


def own_arguments(batch_size: int | None, num_threads: int | None, device_id: int | None) -> dict[str, Any]:
    """Return the arguments of a Pipeline for those of the three values that a program gave."""
    arguments: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if num_threads is not None:
        arguments["num_threads"] = num_threads
    if device_id != -1:
        arguments["device_id"] = device_id
    return arguments


def _newer(name: str, value: Any, older: Any) -> Any:
    """Return the value of ``output_<name>``, which may also be given by its older name. Raises ValueError for both."""
    if older is None:
        return value
    if value is not None:
        raise ValueError(f"{name} is the older name of output_{name}: give only one of the two")
    warn(f"{name} is the older name of output_{name}", DeprecationWarning)
    return tuple(older) if isinstance(older, list) else older


def _external_sources(pipeline: Pipeline) -> dict[str, ExternalSource]:
    pipeline._named_outputs()
    nodes = pipeline._definition.builder.nodes
    return {n.name: n.op for n in nodes if isinstance(n.op, ExternalSource)}


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _signature(output_dtypes: Any, output_shapes: Any, outputs: int) -> tuple[tf.TensorSpec, ...]:
    """Return the types and shapes of an element. Raises TypeError and ValueError."""
    dtypes = _tuple(output_dtypes)
    if not all(isinstance(d, tf.DType) for d in dtypes):
        raise TypeError(f"output_dtypes takes a tf.DType or a tuple of them, got {output_dtypes!r}")
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
    """Return a dataset that runs ``pipeline`` with ``arguments``.

    ``feeds`` has a function for each external_source: it takes the batch size and yields batches.
    """
    signature = _signature(output_dtypes, output_shapes, pipeline.num_outputs)

    def batches() -> Iterator[tuple[Any, ...]]:
        extra = {"prefetch_queue_depth": 1} if feeds else {}
        pipe = recreate(pipeline, **{**arguments, **extra})
        try:
            inputs = {name: feed(pipe.max_batch_size) for name, feed in feeds.items()}
            while True:
                try:
                    outputs = pipe.run(**{name: next(source) for name, source in inputs.items()})
                except StopIteration:
                    return
                yield tuple(dense(k, t.batch, s) for k, (t, s) in enumerate(zip(outputs, signature, strict=True)))
        finally:
            pipe.close()

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def dense(number: int, batch: Batch, expected: tf.TensorSpec) -> Any:
    """Return output ``number`` as a NumPy array of the promised type and shape. Raises TypeError and ValueError."""
    try:
        array = batch.dense()
    except RaggedError:
        raise ValueError(f"output {number} has samples of different shapes: resize or pad them") from None
    host = array if isinstance(array, np.ndarray) else array.get()
    if host.dtype != expected.dtype.as_numpy_dtype:
        raise TypeError(f"output {number} is {host.dtype}, but output_dtypes promises {expected.dtype.name}")
    if not expected.shape.is_compatible_with(host.shape):
        raise ValueError(f"output {number} has the shape {host.shape}, but output_shapes promises {expected.shape}")
    return host


# -- datasets as inputs -----------------------------------------------------------------------------------------------


class Input:
    """A dataset as an input of DALIDatasetWithInputs, with its layout. With ``batch`` the elements of the dataset are
    batches."""

    def __init__(self, dataset: tf.data.Dataset, *, layout: str | None = None, batch: bool | None = False) -> None:
        """Raises TypeError if ``dataset`` is not a tf.data.Dataset."""
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(f"an input must be a tf.data.Dataset, got {dataset!r} ({type(dataset).__name__})")
        self.dataset = dataset
        self.layout = layout
        self.batch = batch


class DALIDatasetWithInputs(_Dataset):
    """A DALIDataset for a pipeline with external_sources, which get their data from other datasets or from their own
    sources.

    The dataset ends when one of its inputs ends; the samples that remain form a smaller batch.
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
        """``input_datasets`` maps the name of an external_source to a dataset whose elements are samples, or to an
        `Input`.

        The other arguments are those of DALIDataset. Raises TypeError, and ValueError if the inputs do not match the
        external_sources.
        """
        del fail_on_device_mismatch, exec_dynamic
        sources = _external_sources(pipeline)
        inputs = {n: d if isinstance(d, Input) else Input(d) for n, d in (input_datasets or {}).items()}
        _check_inputs(inputs, sources)
        feeds = {name: _feed(dataset, sources[name]) for name, dataset in inputs.items()}
        depth = queue_depth(exec_separated, prefetch_queue_depth, cpu_prefetch_queue_depth, gpu_prefetch_queue_depth)
        arguments = {"prefetch_queue_depth": depth, **own_arguments(batch_size, num_threads, device_id)}
        types = _newer("dtypes", output_dtypes, dtypes)
        super().__init__(generated(pipeline, arguments, types, _newer("shapes", output_shapes, shapes), feeds))


def _check_inputs(inputs: Mapping[str, Input], sources: Mapping[str, ExternalSource]) -> None:
    unknown = [n for n in inputs if n not in sources]
    if unknown:
        raise ValueError(f"the pipeline has no external_source {unknown[0]!r}; it has: {', '.join(sources) or 'none'}")
    for name, op in sources.items():
        if op.source is None and name not in inputs:
            raise ValueError(f"external_source {name!r} has neither a source nor an input in input_datasets")
        if op.source is not None and name in inputs:
            raise ValueError(f"external_source {name!r} has both a source and an input in input_datasets")
        if name in inputs and inputs[name].layout and op.layout and inputs[name].layout != op.layout:
            raise ValueError(
                f"input {name!r} has layout {inputs[name].layout!r}, but its external_source has {op.layout!r}"
            )


def _feed(source: Input, op: ExternalSource) -> Callable[[int], Iterator[Any]]:
    """Return a function that takes the batch size and yields batches for one external_source."""
    batched = op.batch if source.batch is None else source.batch
    layout = source.layout or op.layout or None

    def feed(batch_size: int) -> Iterator[Any]:
        elements = iter(source.dataset.as_numpy_iterator())
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
    """Return the next element as an array, or None at the end. Raises TypeError if an element is not a single
    tensor."""
    for element in elements:
        if isinstance(element, (tuple, dict)):
            raise TypeError("the elements of an input must be single tensors; select one tensor with dataset.map first")
        return np.frombuffer(element, np.uint8) if isinstance(element, bytes) else np.asarray(element)
    return None


def _named(data: Any, layout: str | None) -> Any:
    """Return the data of a batch, with its layout if there is one."""
    if layout is None:
        return data
    from ...pipelines.python.tensors import TensorListCPU

    return TensorListCPU(data, layout)
