"""A batch on its way through a run (`InFlightBatch`), and the protocol for sources of batches (`Feed`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...ops.base import Spec
from ...ops.batch import Batch, Origin, Samples
from ...ops.errors import without_frames
from ...ops.interfaces import Copies, StartedWork
from ..compile.plan import Plan
from ..graph.nodes import Edge
from .memory.estimate import MemoryEstimate, Outputs
from .nodes.envs import cut, within
from .nodes.node_pass import Draws, Dropped, Env, LeftOut, Loss, NodePass, State
from .threads.latch import Latch


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the schedule: positions [start, start + n) of the order, as one batch. Created by the feed of a job
    or by the Python API, passed to `Engine`."""

    start: int
    n: int
    states: Mapping[int, State] | None = None
    """The states from which the random streams of operators continue, by the operators' seeds (dynamic mode)."""


@dataclass(slots=True)
class InFlightBatch:
    """One batch on its way through the steps.

    A batch belongs to one thread at a time. It changes hands by a channel's ``put`` and ``get``, or by a latch's
    ``done`` and ``wait``, which order its writes before the next thread's reads. The threads that set and read it:

        field                     set by                            read by
        order, request,           the thread that reads the         all
          requests, all_samples,    schedule (`BatchMerger`),
          draws, reader_samples     never changed
        samples, env, dropped     the thread that has the batch:    the next one
                                    reader, last worker,
                                    completing thread
        chunks                    the thread that cuts or reads     the thread that takes the batch from a channel
        next_estimate             a reader, of the next step        the thread that cuts, or launches
        lane, launched, cuts,     the launching thread              the completing thread, which clears them
          estimated_outputs
        problem                   the thread in which it failed     the caller's thread, which raises it
        replaced                  the caller's thread               the writer
    """

    order: tuple[int, ...]
    """Number of the batch, followed by the number of its part if it was cut. It is the owner of the batch's memory
    reservations."""
    request: Request
    samples: Samples
    """The samples that are still in the batch."""
    reader_samples: Mapping[int, Samples]
    all_samples: Samples
    """The samples that the batch had at first."""
    env: Env = field(default_factory=dict)
    dropped: list[Loss] = field(default_factory=list)
    replaced: bool = False
    """Whether dropped samples were replaced by copies of other samples."""
    chunks: Latch[tuple[Env, NodePass]] | None = None
    """The chunks of the batch on which the worker pool works; None if there are none."""
    problem: BaseException | None = None
    """The exception that made the batch fail; it is raised when the batch is delivered, after the batches before it."""
    next_estimate: MemoryEstimate | None = None
    """Estimate of the memory that the next step needs, if it is known."""
    started: dict[int, StartedWork] = field(default_factory=dict)
    """Work of the next step that host threads have started early, by the node's id."""
    lane: Copies | None = None
    launched: Latch[NodePass] | None = None
    """The launch on a device that is not complete yet."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Ranges [a, b) of the samples that are launched on the device at a time."""
    estimated_outputs: Outputs = ()
    """Estimated dtype and size of the outputs of the launch; see `MemoryEstimate.outputs`."""

    requests: tuple[Request, ...] = ()
    """The requests of a merged batch, which are delivered one by one."""
    draws: Draws = ()
    """See `NodePass.draws`."""

    @property
    def number(self) -> int:
        """Number of the batch."""
        return self.order[0]

    def fail(self, problem: BaseException) -> None:
        """Mark the batch as failed by ``problem``, and drop its data, which may be incomplete."""
        self.problem = without_frames(problem)
        self.env, self.started = {}, {}

    def part(self, k: int, low: int, high: int) -> InFlightBatch:
        """Return part ``k``, the slots [low, high), as a batch of its own."""
        shared: dict[int, tuple[slice, Samples]] = {}

        def inside(samples: Samples) -> Samples:
            return within(samples, low, high, shared)[1]

        all_samples, samples = inside(self.all_samples), inside(self.samples)
        readers = {i: inside(s) for i, s in self.reader_samples.items()}
        dropped: list[Loss] = []
        for d in self.dropped:
            if isinstance(d, LeftOut):
                dropped.append(d.take((d.slots >= low) & (d.slots < high)))
            elif low <= d.slot < high:
                dropped.append(d)
        request = Request(self.request.start + low - int(self.all_samples.slot[0]), high - low)
        return InFlightBatch(
            (*self.order, k),
            request,
            samples,
            readers,
            all_samples,
            cut(self.env, low, high, shared),
            dropped,
            draws=self.draws,
        )

    def split_by_request(self) -> list[InFlightBatch]:
        """Return the batches of the requests that were merged into this one; if it failed, each of them failed."""
        low, batches = int(self.all_samples.slot[0]), list[InFlightBatch]()
        for k, request in enumerate(self.requests):
            batches.append(self.part(k, low, low + request.n))
            batches[-1].problem = self.problem
            low += request.n
        return batches

    def read_from(self, files: Collection[str]) -> Iterator[tuple[int, int, str]]:
        """Yield the records that came from ``files``: node of the reader, slot, and file."""
        for node, samples in self.reader_samples.items():
            for i, slot in enumerate(samples.slot.tolist()):
                if (source := samples.origin(i).source) in files:
                    yield node, slot, source

    def origin_of(self, dropped: Dropped) -> Origin:
        """Return the origin of a dropped sample."""
        return self.all_samples.origin(int(np.searchsorted(self.all_samples.slot, dropped.slot)))

    def position_of(self, dropped: Dropped) -> int:
        """Return the position of a dropped sample in the order."""
        return int(self.all_samples.position[np.searchsorted(self.all_samples.slot, dropped.slot)])

    def part_of(self, dropped: Dropped) -> int:
        """Return which item of a record a dropped sample is; -1 for whole records."""
        part = self.all_samples.part
        return -1 if part is None else int(part[np.searchsorted(self.all_samples.slot, dropped.slot)])

    def outputs(self, plan: Plan) -> dict[str, Batch]:
        """Return the batches that leave the graph, by name."""
        return {name: self.env[edge] for name, edge in plan.graph.outputs.items()}


class Feed(Protocol):
    """Source of samples: the open data sets of the plan's readers, and their orders. Created by the caller of `Engine`,
    which also closes the data sets."""

    states: Mapping[int, Any]
    """State that per_batch nodes keep between batches, by node id (for readers the open data sets)."""
    kinds: Mapping[Edge, Spec]
    """Type and shape of the data set's first sample, for outputs for which the plan leaves the type or number of
    dimensions open. Empty if nothing is open, or if there is no data set."""

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the samples of the batch, and those of each reader by its node id."""
        ...


def draws_of(requests: Iterable[Request]) -> Draws:
    """Return `NodePass.draws` of requests that are merged."""
    draws, low = [], 0
    for request in requests:
        if request.states is not None:
            draws.append((low, low + request.n, request.states))
        low += request.n
    return tuple(draws)
