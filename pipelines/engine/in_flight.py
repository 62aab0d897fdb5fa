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
    """A request for one batch: the positions [start, start + n) in the order of samples. Created by the feed of a job
    or by the Python API, passed to `Engine`."""

    start: int
    n: int
    states: Mapping[int, State] | None = None
    """States from which the operators' random generators continue, by the operators' seeds; used in dynamic mode."""


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
    """Number of the batch and, if it was cut, of the part. Identifies the batch's memory reservations."""
    request: Request
    samples: Samples
    """The samples that are still in the batch, without those that were dropped."""
    reader_samples: Mapping[int, Samples]
    all_samples: Samples
    """The samples that the batch had when it was created."""
    env: Env = field(default_factory=dict)
    dropped: list[Loss] = field(default_factory=list)
    replaced: bool = False
    """Whether dropped samples were replaced by copies of other samples (policy ``replace``)."""
    chunks: Latch[tuple[Env, NodePass]] | None = None
    """The chunks of the batch that worker threads are computing; None if there are none."""
    problem: BaseException | None = None
    """The exception that made the batch fail; it is raised when the batch is delivered, after the batches before it."""
    next_estimate: MemoryEstimate | None = None
    """Estimate of the memory that the batch needs in the next step; None if it was not computed yet."""
    started: dict[int, StartedWork] = field(default_factory=dict)
    """Work of the next step that host threads have started ahead of its launch, by the node's id."""
    lane: Copies | None = None
    launched: Latch[NodePass] | None = None
    """The launch of the batch on a device that is not complete yet; None if there is none."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Ranges [a, b) of samples to compute one after the other; several if the launch is too large."""
    estimated_outputs: Outputs = ()
    """Dtype and size of the launch's outputs, as estimated; see `MemoryEstimate.outputs`."""

    requests: tuple[Request, ...] = ()
    """Requests merged into this batch, which are delivered one by one. Empty if the batch is of one request."""
    draws: Draws = ()
    """States of the operators' random generators, for each merged request; see `NodePass.draws`."""

    @property
    def number(self) -> int:
        """Number of the batch in the order in which batches are requested."""
        return self.order[0]

    def fail(self, problem: BaseException) -> None:
        """Mark the batch as failed by ``problem``, and drop its data, which may be incomplete."""
        self.problem = without_frames(problem)
        self.env, self.started = {}, {}

    def part(self, k: int, low: int, high: int) -> InFlightBatch:
        """Return part ``k`` of this batch as a separate batch: the samples with the indices (slots) [low, high)."""
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
        """Return a separate batch for each request that was merged into this one, failed if this one has failed."""
        low, batches = int(self.all_samples.slot[0]), list[InFlightBatch]()
        for k, request in enumerate(self.requests):
            batches.append(self.part(k, low, low + request.n))
            batches[-1].problem = self.problem
            low += request.n
        return batches

    def read_from(self, files: Collection[str]) -> Iterator[tuple[int, int, str]]:
        """Yield every record of the batch that came from one of ``files``: node id of the reader, index of the sample
        in the batch, and file."""
        for node, samples in self.reader_samples.items():
            for i, slot in enumerate(samples.slot.tolist()):
                if (source := samples.origin(i).source) in files:
                    yield node, slot, source

    def origin_of(self, dropped: Dropped) -> Origin:
        """Return the origin (key, source file, record number) of a dropped sample."""
        return self.all_samples.origin(int(np.searchsorted(self.all_samples.slot, dropped.slot)))

    def position_of(self, dropped: Dropped) -> int:
        """Return the position of a dropped sample in the order of all samples."""
        return int(self.all_samples.position[np.searchsorted(self.all_samples.slot, dropped.slot)])

    def part_of(self, dropped: Dropped) -> int:
        """Return the number of a dropped item among the items of its record; -1 if records are not split."""
        part = self.all_samples.part
        return -1 if part is None else int(part[np.searchsorted(self.all_samples.slot, dropped.slot)])

    def outputs(self, plan: Plan) -> dict[str, Batch]:
        """Return the batches of the graph's outputs, by name."""
        return {name: self.env[edge] for name, edge in plan.graph.outputs.items()}


class Feed(Protocol):
    """Source of samples: the open data sets of the plan's readers, and their orders. Created by the caller of `Engine`,
    which also closes the data sets."""

    states: Mapping[int, Any]
    """For each node with state (``per_batch``), by its id: the kept state, such as a reader's open data set."""
    kinds: Mapping[Edge, Spec]
    """Type and shape of outputs for which the plan leaves the type or number of dimensions open, as the data set's
    first sample decides them. Empty if nothing is open, or if there is no data set."""

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the samples of the batch that ``request`` asks for, and the samples of each reader by its node id."""
        ...


def draws_of(requests: Iterable[Request]) -> Draws:
    """Return, for each of the merged ``requests``, its range of samples in the batch and the states of its random
    generators; see `NodePass.draws`."""
    draws, low = [], 0
    for request in requests:
        if request.states is not None:
            draws.append((low, low + request.n, request.states))
        low += request.n
    return tuple(draws)
