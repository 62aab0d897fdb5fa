"""Server: a pipeline whose inputs are fed by requests. Several requests make one batch; each is answered by itself."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops.errors import DaliRunError, RaggedError, SpecError, kept
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
    """A request cannot be answered; others are not touched by it."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a served pipeline."""

    name: str
    dtype: DALIDataType
    shape: tuple[int | None, ...]
    """Of one sample; None where samples differ."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A request whose inputs are right."""

    number: int
    samples: dict[str, Any]
    """By input: an array (N, ...), or a list of N arrays."""
    n: int
    wanted: Collection[str]
    """Outputs."""


def inputs_of(graph: Graph) -> tuple[Port, ...]:
    """The inputs of ``graph``: its external_sources. Raises SpecError for one whose type is not known."""
    found = []
    for node in prune(graph).nodes:
        if not isinstance(node.op, ExternalSource):
            continue
        dtype, ndim = node.op.each("dtype")[0], node.op.each("ndim")[0]
        if dtype is None or ndim is None:
            raise SpecError(f"{node.name}: an input that is served needs dtype= and ndim=, so that requests can be "
                            "checked")  # fmt: skip
        found.append(Port(node.name, dtype, (None,) * ndim))
    return tuple(found)


def outputs_of(graph: Graph) -> tuple[Port, ...]:
    """The outputs of ``graph``. Raises SpecError for one whose type is not known before it is computed."""
    found = []
    for name, edge in graph.outputs.items():
        spec = graph.spec(edge)
        if spec.dtype is None or spec.shape is None:
            raise SpecError(f"output {name!r}: its type ({spec}) is not known before it is computed: put a cast or a "
                            "reshape step after it")  # fmt: skip
        found.append(Port(name, spec.dtype, spec.shape))
    return tuple(found)


class Server:
    """Answers requests with the pipeline of a spec."""

    def __init__(self, spec: Any, **arguments: Any) -> None:
        """``arguments`` are Pipeline's. Raises SpecError, DeviceError."""
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
        """In their order."""
        return self._pipeline().output_names

    def execute(
        self, requests: Sequence[Arrays], wanted: Sequence[Collection[str]] | None = None
    ) -> list[dict[str, Any] | RequestError]:
        """An answer to each request: arrays (N, ...) by output, or the error that only this request gets. ``wanted``
        names the outputs that each request asks for; all by default.

        A request gives an array (N, ...) for each input, or N strings of bytes for one of encoded files. Requests are
        put together into batches of up to ``max_batch_size`` samples.
        """
        answers: list[Any] = [None] * len(requests)
        checked: list[_Checked] = []
        for k, request in enumerate(requests):
            try:
                checked.append(self._checked(k, request, self.output_names if wanted is None else wanted[k]))
            except RequestError as e:
                answers[k] = kept(e)
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

    def _checked(self, number: int, request: Arrays, wanted: Collection[str]) -> _Checked:
        """The request as arrays of the right types. Raises RequestError."""
        if set(request) != set(self.inputs):
            raise RequestError(
                f"the inputs are {', '.join(self.inputs)}; the request has {', '.join(request) or 'none'}"
            )
        samples = {name: _samples(request[name], port) for name, port in self.inputs.items()}
        counts = {name: len(s) for name, s in samples.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{n} has {c}" for n, c in counts.items())
            raise RequestError(f"the inputs of a request must have as many samples: {told}")
        n = next(iter(counts.values()))
        if not 1 <= n <= self.max_batch_size:
            raise RequestError(f"a request has 1 to {self.max_batch_size} samples, got {n}")
        return _Checked(number, samples, n, wanted)

    # -- batches ------------------------------------------------------------------------------------------------

    def _answer(self, group: Sequence[_Checked], answers: list[Any]) -> None:
        """Run the requests of ``group`` as one batch, or each alone where the batch as a whole fails."""
        try:
            outputs, why = self._run([r.samples for r in group])
        except Exception as e:  # whatever it is, it must not reach the other requests
            self._forget()
            if len(group) > 1:
                for one in group:
                    self._answer([one], answers)
            else:
                answers[group[0].number] = RequestError(self._text(e))
            return
        start = 0
        for request in group:
            chosen = {name: output for name, output in outputs.items() if name in request.wanted}
            try:
                answers[request.number] = _part(chosen, why, start, request.n)
            except RequestError as e:
                answers[request.number] = kept(e)
            start += request.n

    def _run(self, requests: Sequence[dict[str, Any]]) -> tuple[dict[str, TensorList], dict[int, str]]:
        """The outputs of a batch, and why samples of it are missing, by their place."""
        pipe = self._pipeline()
        batch = {name: _joined([r[name] for r in requests]) for name in self.inputs}
        outputs = pipe.run(**batch)
        why = {d.slot: f"{d.node}: {d.code}: {d.message}" for d in one_by_one(pipe._session.dropped) if not d.kept}
        return dict(zip(pipe.output_names, outputs, strict=True)), why

    def _text(self, problem: Exception) -> str:
        """The error's text for a client, without the places of the pipeline's steps in files of this server."""
        text = str(problem) or type(problem).__name__
        for mark in {str(node.mark) for node in self._graph.nodes if node.mark}:
            text = text.replace(f"{mark}: ", "").replace(f" ({mark})", "")
        return text

    def _forget(self) -> None:
        """The pipeline may be broken: the next batch gets a new one."""
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = None


def _samples(given: Any, port: Port) -> Any:
    """An array (N, ...), or a list of arrays. Raises RequestError where it is not of the type of ``port``."""
    ndim = len(port.shape)
    if getattr(given, "dtype", None) == np.object_ or isinstance(given, (list, tuple)):
        items = np.asarray(given, np.object_).reshape(-1).tolist() if hasattr(given, "dtype") else list(given)
        if port.dtype == DALIDataType.UINT8 and ndim == 1 and all(isinstance(i, bytes) for i in items):
            return [np.frombuffer(i, np.uint8) for i in items]
        raise RequestError(f"{port.name}: strings of bytes are taken where samples are 1-D UINT8")
    dtype = to_numpy(port.dtype)
    if getattr(given, "dtype", None) != dtype or given.ndim != ndim + 1:
        got = f"{getattr(given, 'dtype', type(given).__name__)} of shape {tuple(getattr(given, 'shape', ()))}"
        raise RequestError(f"{port.name}: takes {dtype} with {ndim + 1} dimensions, samples first; got {got}")
    return given


def _groups(requests: Sequence[_Checked], most: int) -> list[list[_Checked]]:
    """Requests that go together, in their order: up to ``most`` samples."""
    groups: list[list[_Checked]] = []
    room = 0
    for request in requests:
        if request.n > room:
            groups.append([])
            room = most
        groups[-1].append(request)
        room -= request.n
    return groups


def _joined(parts: Sequence[Any]) -> Any:
    """The samples of several requests as one array, where they are alike, else as a list."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, np.ndarray) for p in parts) and len({p.shape[1:] for p in parts}) == 1:
        return np.concatenate(parts)
    return [sample for part in parts for sample in part]


def _part(outputs: Mapping[str, TensorList], why: Mapping[int, str], start: int, n: int) -> dict[str, Any]:
    """The outputs of samples ``start`` to ``start + n``. Raises RequestError where one of them is missing."""
    lost = [slot for slot in range(start, start + n) if slot in why]
    if lost:
        raise RequestError("; ".join(f"sample {slot - start}: {why[slot]}" for slot in lost[:4]))
    made: dict[str, Any] = {}
    for name, output in outputs.items():
        slots = output.batch.samples.slot
        first = int(np.searchsorted(slots, start))
        part = output.batch.take(slice(first, first + n))
        if len(part) != n or part.samples.slot.tolist() != list(range(start, start + n)):
            raise RequestError(f"output {name!r} does not have a sample for each of the request")
        try:
            made[name] = part.dense()
        except RaggedError:
            shapes = " and ".join(str(tuple(s)) for s in np.unique(part.shapes, axis=0)[:2].tolist())
            raise RequestError(f"output {name!r}: the samples of a request must have one shape, got {shapes}; send "
                               "them one by one, or resize or pad them in the pipeline") from None  # fmt: skip
    return made
