"""Open the data sets of a plan's readers, and look up the samples of each batch: one pass for a job, endlessly for
training.

Used by jobs, by the Python API and by the fork server of a fleet.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...ops.batch import I32, I64, NoOrigins, Origin, Samples
from ...ops.compiled.times import on_behalf
from ...ops.errors import JobError, SpecError
from ...ops.storage.inventory import Inputs, InventoryEntries
from ...readers.base import Reader, Source
from ...readers.external_source import ProgramInput
from ...readers.mix.source import MixedSource
from ...readers.order import Job, Order
from ..compile.plan import Plan
from .engine import Request
from .first_sample import MAX_TRIED, Decided, Stored, first_sample, undecided


class Sources:
    """The open data sets of one plan. Whoever creates it closes it, or uses it as a context manager."""

    def __init__(self, plan: Plan, batch_size: int, opened: Sources | None = None) -> None:
        """With ``opened``, the data sets of another plan of the same graph are used. They remain open until ``opened``
        is closed.

        Raises SpecError or JobError if a data set cannot be opened."""
        self.plan = plan
        self._borrowed = opened is not None
        borrowed = {} if opened is None else {name: (source, order) for _, name, _, source, order in opened.readers}
        self.readers: list[tuple[int, str, Reader, Source, Order]] = []
        self.states: dict[int, Any] = {}
        try:
            for node in plan.readers:
                assert isinstance(node.op, Reader)
                if self._borrowed:
                    source, order = borrowed[node.name]
                    self.states[node.id] = source
                    self.readers.append((node.id, node.name, node.op, source, order))
                    continue
                try:
                    with on_behalf(node.op.loop_client):
                        source = node.op.open()
                except SpecError as e:
                    raise e.at(node.where) from None
                except JobError as e:
                    raise JobError(f"{node.where}: {e}") from None
                self.states[node.id] = source
                try:
                    order = node.op.order_of(source, plan.seeds[node.id], batch_size)
                except JobError as e:
                    raise JobError(f"{node.where}: {e}") from None
                if 0 < order.size < order.num_shards:
                    raise SpecError(f"{node.where}: num_shards is {order.num_shards}, but there are only {order.size} "
                                    "records")  # fmt: skip
                self.readers.append((node.id, node.name, node.op, source, order))
            self.states |= {n.id: n.op.state() for n in plan.graph.nodes if isinstance(n.op, ProgramInput)}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and mappings of the data sets, unless they belong to another `Sources`."""
        for source in () if self._borrowed else self.states.values():
            source.close()

    def unplaced(self) -> Iterator[tuple[str, list[Origin], str]]:
        """Yield the records that readers left out because a condition does not hold for them, in blocks: name of the
        reader's node, origins of the records, and the condition."""
        for _, name, reader, source, _ in self.readers:
            for origins, condition in reader.left_out(source):
                yield name, origins, condition

    def stored(self) -> Iterator[Stored]:
        """Yield the first `MAX_TRIED` records of the data sets in stored order, one of every data set at a time."""
        size = min((order.size for *_, order in self.readers), default=0)
        slot, zeros = _counted(1)
        for i in range(min(size, MAX_TRIED)):
            per_reader = {
                number: Samples.of_epoch_0(slot, zeros, order.records(np.array([i])), source)
                for number, _, _, source, order in self.readers
            }
            yield next(iter(per_reader.values())), per_reader

    @cached_property
    def decided(self) -> Decided:
        """Types and ranks of outputs for which the plan leaves them open, as the first sample of the data set has them;
        computed when an engine first needs them."""
        edges = undecided(self.plan)
        return Decided.by(first_sample(self.plan, self.states, self.stored(), edges), edges)

    def fingerprint(self) -> str:
        """Return a hash that identifies the data of all inputs together."""
        digest = hashlib.sha256()
        for _, name, _, source, _ in self.readers:
            digest.update(f"{name}={source.fingerprint()}\n".encode())
        return digest.hexdigest()

    def inputs(self) -> Inputs:
        """The inventories (files with size, time and number of records) of all data sets."""
        return Inputs({name: inventory_of(source) for _, name, _, source, _ in self.readers}, self.fingerprint())


def opened_once(plan: Plan) -> None:
    """Open and close the data sets of ``plan`` as a check. Raises SpecError or JobError if that fails."""
    Sources(plan, 1).close()


def inventory_of(source: Source) -> InventoryEntries:
    """Return the inventory (files with size, time, records) of a data set. The inventory has one entry if ``source``
    comes from a plugin's reader and has no method `inventory`."""
    if hasattr(source, "inventory"):
        return source.inventory()
    content = int(hashlib.sha256(source.fingerprint().encode()).hexdigest()[:15], 16)
    return InventoryEntries(b"everything", {"content": np.array([content])}, np.array([len(source)]))


class JobFeed:
    """Source of samples for a job, which yields every record of the job's shard once. Created by the job; the engine
    reads ``states`` and calls ``samples``."""

    def __init__(self, sources: Sources, limit: int | None = None) -> None:
        """Raises SpecError if several readers differ in their number of records."""
        self.states: Mapping[int, Any] = sources.states
        self.decided, self.kinds = sources.decided, sources.decided.kinds
        self.stored = sources.stored
        """Function that yields the first records in stored order; see `Sources.stored`."""
        self._jobs: list[tuple[int, Source, Job]] = [(i, s, o.job()) for i, _, _, s, o in sources.readers]
        lengths = {name: len(job) for (_, name, _, _, _), (_, _, job) in zip(sources.readers, self._jobs, strict=True)}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} has {n}" for name, n in lengths.items())
            raise SpecError(f"the readers of one job must have equally many records: {sizes}")
        span = self._jobs[0][2].positions if self._jobs else range(limit or 0)
        self.positions = span if limit is None else range(span.start, min(span.stop, span.start + limit))
        """The positions that this job processes, in the order of the whole data set."""
        self._all_positions = self.positions

    def mixtures(self) -> dict[int, dict[str, int]]:
        """Return how many samples of this job come from each data set of a mixture, by the id of the reader's node."""
        found = {}
        for node, source, job in self._jobs:
            if isinstance(source, MixedSource) and job.shuffled is not None:
                found[node] = source.counts(job.shuffled[self.positions.start : self.positions.stop])
        return found

    def part(self, positions: range) -> JobFeed:
        """Return a source of samples for the same job that has only ``positions``."""
        feed = copy.copy(self)
        feed.positions = positions
        return feed

    def requests(self, batch_size: int, start: int | None = None, *, whole: bool = False) -> Iterator[Request]:
        """Yield the requests from position ``start`` on. Batches are cut at multiples of the batch size, regardless of
        where the job begins.

        With ``whole``, all requests are complete batches of an uninterrupted job: the first may begin before ``start``,
        the last may end after the positions of this job."""
        at, end = self.positions.start if start is None else start, self.positions.stop
        if whole and at < end:
            at = max(at // batch_size * batch_size, self._all_positions.start)
            end = min(-(-end // batch_size) * batch_size, self._all_positions.stop)
        while at < end:
            stop = min((at // batch_size + 1) * batch_size, end)
            yield Request(at, stop - at)
            at = stop

    def first_batch(self, batch_size: int) -> Stored:
        """Return the samples of the first batch of the whole job."""
        return self.samples(Request(self._all_positions.start, min(batch_size, len(self._all_positions))))

    def places(self, positions: I64) -> I64:
        """Convert positions in the whole data set to indices within this job, as requests and outputs use them."""
        return positions

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the samples of the batch that ``request`` asks for, and the samples of each reader by its node id."""
        per_reader = {i: job.samples(request.start, request.n, source) for i, source, job in self._jobs}
        return next(iter(per_reader.values()), numbered(request)), per_reader


class EndlessFeed:
    """Source of samples for a training program: one epoch after the other, with DALI's rules for wrapping, padding and
    shards. Created by the Python API; the engine reads ``states`` and calls ``samples``."""

    def __init__(self, sources: Sources) -> None:
        self.states: Mapping[int, Any] = sources.states
        self.kinds = sources.decided.kinds
        self._orders: list[tuple[int, Source, Order]] = [(i, s, o) for i, _, _, s, o in sources.readers]

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the samples of the batch that ``request`` asks for, and the samples of each reader by its node id."""
        per_reader = {i: order.samples(request.start, request.n, source) for i, source, order in self._orders}
        return (next(iter(per_reader.values())) if per_reader else numbered(request)), per_reader


def numbered(request: Request) -> Samples:
    """Return the samples for ``request`` if the graph has no readers: they are numbered by position."""
    position = np.arange(request.start, request.start + request.n, dtype=np.int64)
    slot, epoch = _counted(request.n)
    return Samples.of_epoch_0(slot, epoch, position, _NAMELESS)


_NAMELESS = NoOrigins()


@lru_cache(8)
def _counted(n: int) -> tuple[I32, I64]:
    """Return slots (indices 0 to n - 1) and epochs of ``n`` samples, in arrays shared by batches of this size."""
    return np.arange(n, dtype=np.int32), np.zeros(n, np.int64)
