"""Running: the iterations of a built pipeline, their inputs and outputs."""

from __future__ import annotations

import itertools
import queue
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...ops.errors import JobError
from ...ops.types import DALIDataType
from ..engine.engine import Engine, Iteration, Options, Request
from ..engine.inputs import EndlessFeed
from ..engine.options import lanes_for
from ..engine.stats import Stats
from ..graph.nodes import Edge
from .building import Building
from .data_node import DataNode
from .sources.source import Input
from .tensors import TensorList, tensor_list


class Running(Building):
    """A pipeline at work: an engine runs ahead as far as its queues let it."""

    def _prepare(self) -> None:
        super()._prepare()
        self._engine: Engine | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._edges: list[Edge] = []
        """The outputs."""
        self._promised = False
        """Something is said about them that must be so."""
        self._stats = Stats()
        self._taken = 0
        """Position behind the last batch that was handed out."""
        self._next = 0
        """Position of the next batch that is scheduled."""
        self._iteration = 0
        """Of the next batch that is scheduled, in its epoch."""
        self._epoch = 0
        self._in_flight = 0
        """Batches scheduled and not handed out."""
        self._prefetched = False
        self._ended = False

    @property
    def _self_driven(self) -> bool:
        """Nothing has to be asked of the program before a batch: the engine runs ahead as far as its queues let it."""
        return not self._inputs and type(self).iter_setup is Running.iter_setup

    def _start(self) -> Engine:
        if self._engine is None:
            plan = self.plan
            self._open()
            assert self._sources is not None
            options = Options(
                num_threads=self._num_threads,
                cpu_queue=self.cpu_queue_size,
                gpu_queue=self.gpu_queue_size,
                lanes=lanes_for(self.gpu_queue_size),
                to_host=False,
                policy=self._on_error,
                **self._run.shared(),
                together=self._self_driven and self._run.rng == "philox",
                inline=True,
            )
            outputs = plan.graph.outputs
            self._edges = [outputs[str(i)] for i in range(self.num_outputs)]
            promises = self._output_dtype, self._output_ndim, self._output_layout
            self._promised = any(p is not None for p in promises)
            schedule = _endless(self._next, self._batch_size) if self._self_driven else _asked(self._requests)
            self._engine = Engine(plan, EndlessFeed(self._sources), schedule, options, self._stats)
            self._engine.start()
        return self._engine

    def iter_setup(self) -> None:
        """Overridden in subclasses: called before every iteration, to `feed_input`. Raise StopIteration at the end."""

    def _schedule_one(self) -> None:
        """Ask for the data of one more batch and put it on its way."""
        if self._ended:
            return
        self._start()
        if self._self_driven:
            self._in_flight += 1
            return
        try:
            self.iter_setup()
            polled = {name: i.poll(self._iteration, self._epoch) for name, i in self._inputs.items()}
        except StopIteration:
            self._ended = True
            return
        batches = {name: self._inputs[name].batches(data) for name, data in polled.items()}
        sizes = {name: len(b[0]) for name, b in batches.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} gave {n}" for name, n in sizes.items())
            raise JobError(f"the inputs of one iteration must have equally many samples: {listed}")
        n = next(iter(sizes.values()), self._batch_size)
        for name, outputs in batches.items():
            self._inputs[name].state.put(self._next, outputs)
        self._requests.put(Request(self._next, n))
        self._next += n
        self._iteration += 1
        self._in_flight += 1

    def _can_feed(self) -> bool:
        """Every input has data for one more batch."""
        return all(i.ready for i in self._inputs.values()) or type(self).iter_setup is not Running.iter_setup

    def schedule_run(self) -> None:
        """Start the next iteration without waiting for it; the first time, as many as the queue is deep."""
        if self._prefetched or not self._exec_pipelined:
            self._schedule_one()
            return
        self._start()
        for k in range(max(self.cpu_queue_size, self.gpu_queue_size)):
            if k and not self._can_feed():
                break
            self._schedule_one()
        self._prefetched = True

    def run(self, cuda_stream: Any = None, /, **pipeline_inputs: Any) -> tuple[TensorList, ...]:
        """The next batch: one TensorList an output. Named inputs are fed to the external_sources of these names.

        Raises StopIteration where a source has ended (until `reset`), KeyError for an input that is none,
        RuntimeError where inputs are named, but batches are prefetched.
        """
        if pipeline_inputs:
            self._feed_all(pipeline_inputs)
        if self._can_feed() or self._in_flight == 0:
            self.schedule_run()
        return self.outputs(cuda_stream)

    def _feed_all(self, given: Mapping[str, Any]) -> None:
        if self._exec_pipelined and max(self.cpu_queue_size, self.gpu_queue_size) > 1:
            raise RuntimeError("run(name=data) needs a pipeline with prefetch_queue_depth=1 or exec_pipelined=False: "
                               "else other batches would come first")  # fmt: skip
        self.build()
        for name, data in given.items():
            self.feed_input(name, data)

    def outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """The outputs of the oldest iteration that was scheduled. Raises StopIteration where there is none left."""
        self.release_outputs()
        return self.share_outputs(cuda_stream)

    def share_outputs(self, cuda_stream: Any = None) -> tuple[TensorList, ...]:
        """As `outputs`. Batches are never overwritten: they stay as they are for as long as they are referred to."""
        del cuda_stream  # outputs are complete when they are handed out
        if self._in_flight == 0:
            raise StopIteration
        iteration: Iteration = next(self._start())
        self._in_flight -= 1
        self._taken = iteration.request.start + iteration.request.n
        env = iteration.env
        result = tuple([tensor_list(env[edge]) for edge in self._edges])
        if self._promised:
            self._check_outputs(result)
        return result

    def release_outputs(self) -> None:
        """Nothing to do: memory is given back when the last reference to a batch goes."""

    def output_stream(self) -> int:
        """The stream on which outputs are complete: the default one, as they are waited for before they are given."""
        return 0

    def reset(self) -> None:
        """Begin a new epoch of the sources, if the last one ended."""
        if not self._ended:
            return
        self._ended = False
        self._prefetched = False
        self._iteration = 0
        self._epoch += 1
        for i in self._inputs.values():
            i.reset()

    def empty(self) -> bool:
        """Nothing is scheduled that was not handed out."""
        return self._in_flight == 0

    def feed_input(
        self, data_node: DataNode | str, data: Any, layout: str | None = None, cuda_stream: Any = None,
        use_copy_kernel: bool = False,
    ) -> None:  # fmt: skip
        """Give the next batch to an external_source without a source: an array (N, ...) or a list of arrays. It is
        copied, unless the external_source has ``no_copy``.

        With ``blocking=True`` a run waits for it, in another thread. Raises KeyError for a name that is no
        external_source, RuntimeError where it has a source of its own.
        """
        del cuda_stream, use_copy_kernel
        self.build()
        found = self._input(data_node)
        if found.has_source:
            raise RuntimeError(f"{found.name} has a source: it cannot be fed by feed_input")
        found.feed(data, layout)

    def input_feed_count(self, input_name: str) -> int:
        """How many batches the input needs before the first run."""
        self._input(input_name)
        return max(self.cpu_queue_size, self.gpu_queue_size) if self._exec_pipelined else 1

    def _input(self, node: DataNode | str) -> Input:
        self.build()
        if not isinstance(node, (str, DataNode)):
            raise TypeError(f"an input goes by its name or its DataNode, got {node!r}")
        name = node if isinstance(node, str) else node.builder.nodes[node.edge.node].name
        if name not in self._inputs:
            known = ", ".join(self._inputs) or "none"
            raise KeyError(f"{name!r} is no external_source of this pipeline that an output needs; it has: {known}")
        return self._inputs[name]

    def _check_outputs(self, outputs: tuple[TensorList, ...]) -> None:
        checks: list[tuple[str, Any, Any]] = [
            ("dtype", self._output_dtype, lambda t: t.dtype),
            ("ndim", self._output_ndim, lambda t: t.batch.ndim),
            ("layout", self._output_layout, lambda t: t.layout()),
        ]
        for what, wanted, of in checks:
            if wanted is None:
                continue
            each = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted] * len(outputs)
            if len(each) != len(outputs):
                raise RuntimeError(f"output_{what} has {len(each)} entries for {len(outputs)} outputs")
            for i, (want, output) in enumerate(zip(each, outputs, strict=True)):
                if want is not None and of(output) != want:
                    got, need = (_shown(v) for v in (of(output), want))
                    raise RuntimeError(f"output {i} has {what} {got}; output_{what} promises {need}")

    def executor_statistics(self) -> dict[str, dict[str, Any]]:
        """For every operator: calls, samples, bytes in and out, seconds on CPU and GPU, and DALI's memory sizes.

        ``real_memory_size`` and ``reserved_memory_size`` are the bytes that all outputs of one call take on average.
        """
        table = {}
        for name, n in self._stats.nodes.items():
            memory = [n.bytes_out // max(n.calls, 1)]
            table[name] = {
                "calls": n.calls, "samples": n.samples, "bytes_in": n.bytes_in, "bytes_out": n.bytes_out,
                "cpu_seconds": n.cpu_seconds, "gpu_seconds": n.gpu_seconds,
                "real_memory_size": memory, "max_real_memory_size": memory,
                "reserved_memory_size": memory, "max_reserved_memory_size": memory,
            }  # fmt: skip
        return table

    def external_source_shm_statistics(self) -> dict[str, list[int]]:
        """Shared memory of parallel external_sources: bytes of the blocks, whole and for each sample of a batch."""
        sizes = self._workers.capacities() if self._workers is not None else []
        return {"capacities": sizes, "per_sample_capacities": [s // self._batch_size for s in sizes]}

    def close(self) -> None:
        """Stop the threads and processes and close the data sets."""
        engine, close_inputs = self._let_go()
        if engine is not None:
            engine.stop()
        close_inputs()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_sources", None) is None or ending():  # then modules go, too, and the system closes files
            return
        engine, close_inputs = self._let_go()
        if engine is not None:
            engine.abandon(close_inputs)
        else:
            close_inputs()

    def _let_go(self) -> tuple[Engine | None, Callable[[], None]]:
        """The engine, which is to be stopped, and what closes its inputs then."""
        engine, workers, sources = self._engine, self._workers, self._sources
        self._engine = self._workers = self._sources = None
        if engine is not None:
            self._requests.put(None)

        def close_inputs() -> None:
            if workers is not None:
                workers.close()
            if sources is not None:
                sources.close()

        return engine, close_inputs


# Generators that the engine's threads hold must not hold the pipeline: it stops the threads when nobody refers to it.


def _endless(start: int, batch_size: int) -> Iterator[Request]:
    for at in itertools.count(start, batch_size):
        yield Request(at, batch_size)


def _asked(requests: queue.SimpleQueue[Request | None]) -> Iterator[Request]:
    while (request := requests.get()) is not None:
        yield request


def _shown(value: Any) -> str:
    return value.name if isinstance(value, DALIDataType) else repr(value)
