"""A batch on its way through a run (Iteration), and the sources of batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...ops.base import Spec
from ...ops.batch import Batch, Origin, Samples
from ...ops.errors import kept
from ...ops.interfaces import Copies, StartedWork
from ..compile.plan import Plan
from ..graph.nodes import Edge
from .memory.estimate import MemoryEstimate, Outputs
from .nodes.envs import cut, within
from .nodes.node_pass import Draws, Dropped, Env, LeftOut, Loss, NodePass, State
from .threads.latch import Latch


@dataclass(frozen=True, slots=True)
class Request:
    """Positions [start, start + n) of the order, as one batch."""

    start: int
    n: int
    states: Mapping[int, State] | None = None
    """Where the random streams of operators go on from, by their seeds (the dynamic mode)."""


@dataclass(slots=True)
class InFlightBatch:
    """One batch on its way through the steps.

    A batch belongs to one thread at a time. It changes hands by a channel's ``put`` and ``get``, or by a latch's
    ``done`` and ``wait``, which order its writes before the next thread's reads. The threads that set and read it:

        field                     set by                            read by
        order, request, requests,    the thread that reads the         all
          everyone, draws,          schedule (`Intake`), never
          reader_samples            changed
        samples, env, dropped     the thread that has the batch:    the next one
                                    reader, last worker, settler
        chunks                    the thread that cuts or reads     the thread that takes the batch from a channel
        ahead                     a reader, of the next step        the thread that cuts, or launches
        lane, launched, cuts,     the launching thread              the settling thread, which clears them
          made
        problem                   the thread in which it failed     the caller's thread, which raises it
        replaced                  the caller's thread               the writer
    """

    order: tuple[int, ...]
    """Number of the batch, and of its part where it was cut; memory accounts go by it."""
    request: Request
    samples: Samples
    """The samples still in it."""
    reader_samples: Mapping[int, Samples]
    everyone: Samples
    """The samples that it began with."""
    env: Env = field(default_factory=dict)
    dropped: list[Loss] = field(default_factory=list)
    replaced: bool = False
    """Copies of other samples stand in the places of the dropped ones."""
    chunks: Latch[tuple[Env, NodePass]] | None = None
    """Work on it that is under way in the pool."""
    problem: BaseException | None = None
    """The error that made it fail: raised in its turn, once those before it are handed out."""
    next_estimate: MemoryEstimate | None = None
    """The memory that the next step will hold, where that is known."""
    started: dict[int, StartedWork] = field(default_factory=dict)
    """Parts of the next step's work that threads of the host have started, by the node's id."""
    lane: Copies | None = None
    launched: Latch[NodePass] | None = None
    """The launch on a device that is under way."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Places [a, b) of the samples that go onto the device at a time."""
    estimated_outputs: Outputs = ()
    """Outputs that the launch is likely to make; see `MemoryEstimate.outputs`."""

    requests: tuple[Request, ...] = ()
    """The requests to hand out one by one, of several batches that go through the steps together."""
    draws: Draws = ()
    """See `Run`."""

    @property
    def number(self) -> int:
        """Of the batch."""
        return self.order[0]

    def fail(self, problem: BaseException) -> None:
        """The batch has failed: what there is of it is nobody's, and nobody knows how far it came."""
        self.problem = kept(problem)
        self.env, self.started = {}, {}

    def part(self, k: int, low: int, high: int) -> InFlightBatch:
        """Part ``k``: the slots [low, high), as an iteration of its own."""
        shared: dict[int, tuple[slice, Samples]] = {}

        def inside(whole: Samples) -> Samples:
            return within(whole, low, high, shared)[1]

        everyone, samples = inside(self.everyone), inside(self.samples)
        readers = {i: inside(s) for i, s in self.reader_samples.items()}
        dropped: list[Loss] = []
        for d in self.dropped:
            if isinstance(d, LeftOut):
                dropped.append(d.take((d.slots >= low) & (d.slots < high)))
            elif low <= d.slot < high:
                dropped.append(d)
        request = Request(self.request.start + low - int(self.everyone.slot[0]), high - low)
        return InFlightBatch(
            (*self.order, k),
            request,
            samples,
            readers,
            everyone,
            cut(self.env, low, high, shared),
            dropped,
            draws=self.draws,
        )

    def split_by_request(self) -> list[InFlightBatch]:
        """As it was asked for; each of them failed where it did."""
        low, found = int(self.everyone.slot[0]), []
        for k, request in enumerate(self.requests):
            found.append(self.part(k, low, low + request.n))
            found[-1].problem = self.problem
            low += request.n
        return found

    def read_from(self, files: Collection[str]) -> Iterator[tuple[int, int, str]]:
        """The records that came from ``files``: node of the reader, slot, and file."""
        for node, samples in self.reader_samples.items():
            for i, slot in enumerate(samples.slot.tolist()):
                if (source := samples.origin(i).source) in files:
                    yield node, slot, source

    def origin_of(self, dropped: Dropped) -> Origin:
        """Where a dropped sample came from."""
        return self.everyone.origin(int(np.searchsorted(self.everyone.slot, dropped.slot)))

    def position_of(self, dropped: Dropped) -> int:
        """Position of a dropped sample."""
        return int(self.everyone.position[np.searchsorted(self.everyone.slot, dropped.slot)])

    def part_of(self, dropped: Dropped) -> int:
        """Which part of a record a dropped sample is; -1 for whole records."""
        part = self.everyone.part
        return -1 if part is None else int(part[np.searchsorted(self.everyone.slot, dropped.slot)])

    def outputs(self, plan: Plan) -> dict[str, Batch]:
        """The batches that leave the graph, by name."""
        return {name: self.env[edge] for name, edge in plan.graph.outputs.items()}


class Feed(Protocol):
    """Where samples come from: the open data sets of the plan's readers, and their orders."""

    states: Mapping[int, Any]
    """State that per_batch nodes keep between iterations, by node id (open data sets)."""
    kinds: Mapping[Edge, Spec]
    """Types and shapes of the data set's first sample, for outputs whose type or number of dimensions the plan leaves
    open. Empty if nothing is open, or if there is no data set."""

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """The samples of the batch: the iteration's, and each reader's own."""
        ...


def draws_of(requests: Iterable[Request]) -> Draws:
    """`Run.draws` of batches that go through the steps together."""
    found, low = [], 0
    for request in requests:
        if request.states is not None:
            found.append((low, low + request.n, request.states))
        low += request.n
    return tuple(found)
