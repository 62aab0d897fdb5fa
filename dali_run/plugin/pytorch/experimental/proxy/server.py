"""DALIServer: a thread that runs a pipeline on the batches that workers send."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any, Self

import torch

from .....pipelines.python.pipeline import Pipeline
from .....pipelines.python.recreate import recreate
from .....pipelines.python.torch_views import from_batch
from .....readers.external_source import ExternalSource
from .references import DALIOutputBatchRef, DALIPipelineRunRef, Proxy

_STOP = None
_PATIENCE = 0.5
"""Seconds after which a thread that waits for a batch checks whether the server still runs."""


class DALIServer:
    """Runs ``pipeline`` on batches that the workers of a DataLoader collect. A context manager: on exit it stops its
    thread.

    A data set calls `proxy` as a transform in each worker. `produce_data` replaces the references in a batch by the
    results.
    """

    def __init__(self, pipeline: Pipeline, deterministic: bool = False) -> None:
        """With ``deterministic`` the batches are run in the order in which the program asks for them, whichever worker
        is faster.

        Raises TypeError if ``pipeline`` is not a Pipeline, RuntimeError if it has no external_source.
        """
        if not isinstance(pipeline, Pipeline):
            raise TypeError(f"DALIServer takes a Pipeline, got {pipeline!r}")
        pipeline._named_outputs()
        nodes = pipeline._definition.builder.nodes
        names = [n.name for n in nodes if isinstance(n.op, ExternalSource) and n.op.source is None]
        if not names:
            raise RuntimeError("the pipeline has no inputs: it needs an external_source without a source")
        self._pipe = pipeline
        self._requests: Any = torch.multiprocessing.get_context("spawn").Queue()  # forked workers accept it, too
        self._proxy = Proxy(names, pipeline.num_outputs, self._requests, deterministic)
        self._results: dict[Any, Any] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._loaders = 0
        """Number of loaders that iterate now."""

    @property
    def proxy(self) -> Proxy:
        """The object that a data set calls as a transform; each worker gets a copy."""
        return self._proxy

    def produce_data(self, obj: Any) -> Any:
        """Return ``obj`` with tensors in the places of the references.

        References are searched in lists, tuples, dicts and attributes of objects. A batch can be taken once. Raises the
        error of the batch's run, or RuntimeError if no server runs.
        """
        outputs_by_batch: dict[Any, Any] = {}
        visited: dict[int, Any] = {}
        return self._filled(obj, outputs_by_batch, visited)

    def _filled(self, obj: Any, outputs_by_batch: dict[Any, Any], visited: dict[int, Any]) -> Any:
        if isinstance(obj, DALIOutputBatchRef):
            key = obj.pipe_run_ref.batch_id
            if key not in outputs_by_batch:
                outputs_by_batch[key] = self._outputs(obj.pipe_run_ref)
            return outputs_by_batch[key][obj.output_idx]
        if isinstance(obj, (str, bytes, int, float, torch.Tensor)) or obj is None:
            return obj
        if id(obj) in visited:
            return visited[id(obj)]
        visited[id(obj)] = obj
        if isinstance(obj, list):
            obj[:] = [self._filled(v, outputs_by_batch, visited) for v in obj]
        elif isinstance(obj, tuple):
            parts = [self._filled(v, outputs_by_batch, visited) for v in obj]
            visited[id(obj)] = type(obj)(*parts) if hasattr(obj, "_fields") else type(obj)(parts)
        elif isinstance(obj, dict):
            obj.update({k: self._filled(v, outputs_by_batch, visited) for k, v in obj.items()})
        elif hasattr(obj, "__dict__") and not isinstance(obj, type):
            for name, value in list(vars(obj).items()):
                filled = self._filled(value, outputs_by_batch, visited)
                if filled is not value:
                    setattr(obj, name, filled)
        return visited[id(obj)]

    def _outputs(self, batch: DALIPipelineRunRef) -> tuple[torch.Tensor, ...]:
        if not batch.is_scheduled:
            self._requests.put((batch.batch_id, batch.call_args))
            batch.is_scheduled = True
        with self._changed:
            while batch.batch_id not in self._results:
                if not self.is_running:
                    raise RuntimeError("the server is not running: use it as `with DALIServer(pipeline) as server:`")
                self._changed.wait(_PATIENCE)
            result = self._results.pop(batch.batch_id)
        if isinstance(result, Exception):
            raise result
        outputs: tuple[torch.Tensor, ...] = result
        return outputs

    def iterate(self) -> None:
        """Start the server's thread because a loader begins an epoch. DataLoader calls it."""
        self.start_thread()
        self._loaders += 1

    def iterated(self, stop: bool) -> None:
        """Count down the iterating loaders at the end of an epoch, which may be early. DataLoader calls it.

        After the last loader, drop the results that nobody took, and stop the thread if ``stop`` is true.
        """
        self._loaders -= 1
        if self._loaders:
            return
        if stop:
            self.stop_thread()
        with self._changed:
            self._results.clear()

    # -- the thread ---------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start_thread(self) -> None:
        """Start the thread unless it runs. `__enter__` calls it."""
        if not self.is_running:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._serve, name="dali-server", daemon=True)
            self._thread.start()

    def stop_thread(self) -> None:
        """Stop the thread. Batches that wait are not run."""
        if self._thread is not None:
            self._stopping.set()
            self._requests.put(_STOP)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start_thread()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_thread()

    def _serve(self) -> None:
        waiting: deque[Any] = deque()
        """Requests that were not given to the pipeline yet."""
        running: deque[Any] = deque()
        depth = self._pipe._settings.deepest_queue
        while not self._stopping.is_set():
            while len(running) + len(waiting) < depth:
                try:
                    request = self._requests.get(block=not running and not waiting)
                except queue.Empty:
                    break
                if request is _STOP:
                    return
                waiting.append(request)
            while waiting and len(running) < depth:
                request = waiting.popleft()
                try:
                    for name, data in request[1].items():
                        self._pipe.feed_input(name, data)
                    self._pipe.schedule_run()
                except Exception as e:
                    self._failed(request, e, running, waiting)
                    break
                running.append(request)
            if running:
                self._finish(running, waiting)

    def _finish(self, running: deque[Any], waiting: deque[Any]) -> None:
        """Wait for the oldest running batch and store its result."""
        request = running.popleft()
        try:
            outputs = self._pipe.outputs()
        except Exception as e:
            self._failed(request, e, running, waiting)
            return
        try:
            self._tell(request[0], tuple(from_batch(t.batch) for t in outputs))
        except ValueError as e:  # samples of different shapes
            self._tell(request[0], e)

    def _failed(self, request: Any, error: Exception, running: deque[Any], waiting: deque[Any]) -> None:
        """Store the error of a failed batch, and run the other batches again in a new pipeline, because the old one may
        have failed with it."""
        self._tell(request[0], error)
        waiting.extendleft(reversed(running))
        running.clear()
        fresh = recreate(self._pipe)
        self._pipe.close()
        self._pipe = fresh

    def _tell(self, batch_id: Any, result: Any) -> None:
        with self._changed:
            self._results[batch_id] = result
            self._changed.notify_all()
