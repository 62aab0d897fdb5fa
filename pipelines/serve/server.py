"""Server: a pipeline whose inputs are fed by requests. Several requests share one batch; each gets its own answer. Used
by `dali_run.plugin.triton`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops.errors import DaliRunError, RaggedError, SpecError, without_frames
from ...ops.types import DALIDataType, to_numpy
from ...readers.external_source import ExternalSource
from ..compile.prune import prune
from ..engine.nodes.node_pass import one_by_one
from ..graph.nodes import Graph
from ..python.from_spec import load_spec
from ..python.pipeline import Pipeline
from ..python.tensors import TensorList

Arrays = Mapping[str, Any]


class RequestError(DaliRunError):
    """Error of one request that cannot be answered. Other requests of the same batch are not affected."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a served pipeline."""

    name: str
    dtype: DALIDataType
    shape: tuple[int | None, ...]
    """Shape of one sample; None in place of a length that differs between samples."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A client's request after its inputs were checked."""

    number: int
    samples: dict[str, Any]
    """Samples of each input, by its name: an array (N, ...), or a list of N arrays."""
    n: int
    wanted: Collection[str]
    """Names of the outputs that the client requested."""


def inputs_of(graph: Graph) -> tuple[Port, ...]:
    """Return the inputs of ``graph``: the external_sources. Raises SpecError if the type of one is unknown."""
    ports = []
    for node in prune(graph).nodes:
        if not isinstance(node.op, ExternalSource):
            continue
        dtype, ndim = node.op.each("dtype")[0], node.op.each("ndim")[0]
        if dtype is None or ndim is None:
            raise SpecError(f"{node.name}: an input of a served pipeline needs dtype= and ndim=, so that requests "
                            "can be checked")  # fmt: skip
        ports.append(Port(node.name, dtype, (None,) * ndim))
    return tuple(ports)


def outputs_of(graph: Graph) -> tuple[Port, ...]:
    """Return the outputs of ``graph``. Raises SpecError if the type of one is unknown before it is computed."""
    ports = []
    for name, edge in graph.outputs.items():
        spec = graph.spec(edge)
        if spec.dtype is None or spec.shape is None:
            raise SpecError(f"output {name!r}: its type ({spec}) is unknown before it is computed: add a cast or a "
                            "reshape step after it")  # fmt: skip
        ports.append(Port(name, spec.dtype, spec.shape))
    return tuple(ports)


class Server:
    """A running pipeline of a spec that answers requests. Several threads may call it; they take turns."""

    def __init__(self, spec: Any, **arguments: Any) -> None:
        """``arguments`` are passed to Pipeline. Raises SpecError, DeviceError."""
        self._spec = spec
        self._arguments = {"prefetch_queue_depth": 1, "on_error": "skip", **arguments}
        self._lock = threading.Lock()
        self._pipe: Pipeline | None = None
        self._graph = graph = self._pipeline().plan.graph
        self.inputs = {p.name: p for p in inputs_of(graph)}
        self.max_batch_size = self._pipeline().max_batch_size

    def _pipeline(self) -> Pipeline:
        if self._pipe is None:
            self._pipe = load_spec(self._spec, **self._arguments)
            self._pipe.build()
        return self._pipe

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in the spec's order."""
        return self._pipeline().output_names

    def execute(
        self, requests: Sequence[Arrays], requested: Sequence[Collection[str]] | None = None
    ) -> list[dict[str, Any] | RequestError]:
        """Return an answer for each request: a mapping from output names to arrays (N, ...), or the error of this
        request. ``requested`` names the requested outputs of each request; by default all.

        A request contains an array (N, ...) for each input, or N byte strings for an input of encoded files. Requests
        are combined into batches of up to ``max_batch_size`` samples.
        """
        answers: list[Any] = [None] * len(requests)
        checked: list[_Checked] = []
        for k, request in enumerate(requests):
            try:
                checked.append(self._checked(k, request, self.output_names if requested is None else requested[k]))
            except RequestError as e:
                answers[k] = without_frames(e)
        with self._lock:
            for group in _groups(checked, self.max_batch_size):
                self._answer(group, answers)
        return answers

    def close(self) -> None:
        """Stop the pipeline."""
        with self._lock:
            if self._pipe is not None:
                self._pipe.close()
            self._pipe = None

    # -- requests -----------------------------------------------------------------------------------------------

    def _checked(self, number: int, request: Arrays, requested: Collection[str]) -> _Checked:
        """Check the inputs of one request and return it. ``number`` is its index, for messages. Raises RequestError."""
        if set(request) != set(self.inputs):
            raise RequestError(
                f"the inputs are {', '.join(self.inputs)}; the request has {', '.join(request) or 'none'}"
            )
        samples = {name: _samples(request[name], port) for name, port in self.inputs.items()}
        counts = {name: len(s) for name, s in samples.items()}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{n} has {c}" for n, c in counts.items())
            raise RequestError(f"the inputs of a request must have the same number of samples: {counted}")
        n = next(iter(counts.values()))
        if not 1 <= n <= self.max_batch_size:
            raise RequestError(f"a request has 1 to {self.max_batch_size} samples, got {n}")
        return _Checked(number, samples, n, requested)

    # -- batches ------------------------------------------------------------------------------------------------

    def _answer(self, group: Sequence[_Checked], answers: list[Any]) -> None:
        """Run the requests in ``group`` as one batch or, if that batch fails, one by one. Store their results in
        ``answers``."""
        try:
            outputs, why = self._run([r.samples for r in group])
        except Exception as e:  # any error must not reach the other requests
            self._forget()
            if len(group) > 1:
                for request in group:
                    self._answer([request], answers)
            else:
                answers[group[0].number] = RequestError(self._text(e))
            return
        start = 0
        for request in group:
            chosen = {name: output for name, output in outputs.items() if name in request.wanted}
            try:
                answers[request.number] = _part(chosen, why, start, request.n)
            except RequestError as e:
                answers[request.number] = without_frames(e)
            start += request.n

    def _run(self, requests: Sequence[dict[str, Any]]) -> tuple[dict[str, TensorList], dict[int, str]]:
        """Run ``requests`` as one batch. Return its outputs, and the reasons for which samples are missing, by index in
        the batch."""
        pipe = self._pipeline()
        batch = {name: _joined([r[name] for r in requests]) for name in self.inputs}
        outputs = pipe.run(**batch)
        why = {d.slot: f"{d.node}: {d.code}: {d.message}" for d in one_by_one(pipe._session.dropped) if not d.kept}
        return dict(zip(pipe.output_names, outputs, strict=True)), why

    def _text(self, problem: Exception) -> str:
        """Return an error as text for a client, without positions in spec files of this server."""
        text = str(problem) or type(problem).__name__
        for mark in {str(node.mark) for node in self._graph.nodes if node.mark}:
            text = text.replace(f"{mark}: ", "").replace(f" ({mark})", "")
        return text

    def _forget(self) -> None:
        """Close the pipeline, which may be broken after an error. The next batch gets a new one."""
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = None


def _samples(values: Any, port: Port) -> Any:
    """Return the values that a request has for an input as an array (N, ...), or a list of arrays. Raises RequestError
    if their type differs from that of ``port``."""
    ndim = len(port.shape)
    if getattr(values, "dtype", None) == np.object_ or isinstance(values, (list, tuple)):
        items = np.asarray(values, np.object_).reshape(-1).tolist() if hasattr(values, "dtype") else list(values)
        if port.dtype == DALIDataType.UINT8 and ndim == 1 and all(isinstance(i, bytes) for i in items):
            return [np.frombuffer(i, np.uint8) for i in items]
        raise RequestError(f"{port.name}: byte strings are accepted only if samples are 1-D UINT8")
    dtype = to_numpy(port.dtype)
    if getattr(values, "dtype", None) != dtype or values.ndim != ndim + 1:
        got = f"{getattr(values, 'dtype', type(values).__name__)} of shape {tuple(getattr(values, 'shape', ()))}"
        raise RequestError(f"{port.name}: takes {dtype} with {ndim + 1} dimensions, samples first; got {got}")
    return values


def _groups(requests: Sequence[_Checked], max_samples: int) -> list[list[_Checked]]:
    """Divide the requests, in their order, into groups of at most ``max_samples`` samples, each of which becomes a
    batch."""
    groups: list[list[_Checked]] = []
    free = 0
    for request in requests:
        if request.n > free:
            groups.append([])
            free = max_samples
        groups[-1].append(request)
        free -= request.n
    return groups


def _joined(parts: Sequence[Any]) -> Any:
    """Return the samples that several requests have for one input, as one array if their shapes agree, otherwise as a
    list."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, np.ndarray) for p in parts) and len({p.shape[1:] for p in parts}) == 1:
        return np.concatenate(parts)
    return [sample for part in parts for sample in part]


def _part(outputs: Mapping[str, TensorList], why: Mapping[int, str], start: int, n: int) -> dict[str, Any]:
    """Return the outputs that belong to one request: samples ``start`` to ``start + n`` of a batch. Raises RequestError
    with the reason in ``why`` if one is missing."""
    missing = [slot for slot in range(start, start + n) if slot in why]
    if missing:
        raise RequestError("; ".join(f"sample {slot - start}: {why[slot]}" for slot in missing[:4]))
    answer: dict[str, Any] = {}
    for name, output in outputs.items():
        slots = output.batch.samples.slot
        first = int(np.searchsorted(slots, start))
        part = output.batch.take(slice(first, first + n))
        if len(part) != n or part.samples.slot.tolist() != list(range(start, start + n)):
            raise RequestError(f"output {name!r} does not have a sample for each of the request")
        try:
            answer[name] = part.dense()
        except RaggedError:
            shapes = " and ".join(str(tuple(s)) for s in np.unique(part.shapes, axis=0)[:2].tolist())
            raise RequestError(f"output {name!r}: the samples of a request must have one shape, got {shapes}; send "
                               "them one by one, or resize or pad them in the pipeline") from None  # fmt: skip
    return answer
