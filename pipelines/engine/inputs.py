"""Feed: the open data sets of a plan's readers, and the samples of each batch: once through for a job, endlessly for
training."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...ops.batch import I32, I64, NoOrigins, Samples
from ...ops.compiled.warm_up_client import on_behalf
from ...ops.errors import JobError, SpecError
from ...ops.storage.inventory import Inputs, InventoryEntries
from ...readers.base import Reader, Source
from ...readers.external_source import ProgramInput
from ...readers.order import Job, Order
from ..compile.plan import Plan
from .engine import Request
from .first_sample import MAX_TRIED, Decided, Stored, first_sample, undecided


class Sources:
    """The plan's data sets, opened. Use it as a context manager, or close it."""

    def __init__(self, plan: Plan, batch_size: int, opened: Sources | None = None) -> None:
        """``opened`` lends the data sets of another plan of the same graph, which stay its own.

        Raises SpecError or JobError where a data set cannot be opened.
        """
        self.plan = plan
        self._lent = opened is not None
        lent = {} if opened is None else {name: (source, order) for _, name, _, source, order in opened.readers}
        self.readers: list[tuple[int, str, Reader, Source, Order]] = []
        self.states: dict[int, Any] = {}
        try:
            for node in plan.readers:
                assert isinstance(node.op, Reader)
                if self._lent:
                    source, order = lent[node.name]
                    self.states[node.id] = source
                    self.readers.append((node.id, node.name, node.op, source, order))
                    continue
                try:
                    with on_behalf(node.op.name):
                        source = node.op.open()
                except SpecError as e:
                    raise e.at(node.where) from None
                except JobError as e:
                    raise JobError(f"{node.where}: {e}") from None
                self.states[node.id] = source
                order = node.op.order(len(source), plan.seeds[node.id], batch_size, getattr(source, "groups", None))
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
        """Let go of files and mappings."""
        for source in () if self._lent else self.states.values():
            source.close()

    def stored(self) -> Iterator[Stored]:
        """The records of all data sets, one of each at a time, in stored order; `MAX_TRIED` at most."""
        size = min((order.size for *_, order in self.readers), default=0)
        slot, zeros = _counted(1)
        for i in range(min(size, MAX_TRIED)):
            per_reader = {
                number: Samples.of_epoch_0(slot, zeros, np.array([order.first + i]), source)
                for number, _, _, source, order in self.readers
            }
            yield next(iter(per_reader.values())), per_reader

    @cached_property
    def decided(self) -> Decided:
        """The facts that the data set's first sample decides; computed when an engine first needs them."""
        edges = undecided(self.plan)
        return Decided.by(first_sample(self.plan, self.states, self.stored(), edges), edges)

    def fingerprint(self) -> str:
        """Identity of all inputs together."""
        whole = hashlib.sha256()
        for _, name, _, source, _ in self.readers:
            whole.update(f"{name}={source.fingerprint()}\n".encode())
        return whole.hexdigest()

    def inputs(self) -> Inputs:
        """The inventories of all data sets."""
        return Inputs({name: inventory_of(source) for _, name, _, source, _ in self.readers}, self.fingerprint())


def opened_once(plan: Plan) -> None:
    """Raises SpecError or JobError where a data set of ``plan`` cannot be opened."""
    Sources(plan, 1).close()


def inventory_of(source: Source) -> InventoryEntries:
    """The inventory of a data set; a single entry if the source of a plugin's reader has no `inventory`."""
    if hasattr(source, "inventory"):
        return source.inventory()
    content = int(hashlib.sha256(source.fingerprint().encode()).hexdigest()[:15], 16)
    return InventoryEntries(b"everything", {"content": np.array([content])}, np.array([len(source)]))


class JobFeed:
    """Every record of one shard exactly once. ``states`` and ``samples`` are what the engine asks for."""

    def __init__(self, sources: Sources, limit: int | None = None) -> None:
        """Raises SpecError where several readers differ in their number of records."""
        self.states: Mapping[int, Any] = sources.states
        self.decided, self.kinds = sources.decided, sources.decided.kinds
        self.stored = sources.stored
        """The records in stored order, see `Sources.stored`."""
        self._jobs: list[tuple[int, Source, Job]] = [(i, s, o.job()) for i, _, _, s, o in sources.readers]
        lengths = {name: len(job) for (_, name, _, _, _), (_, _, job) in zip(sources.readers, self._jobs, strict=True)}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} has {n}" for name, n in lengths.items())
            raise SpecError(f"the readers of one job must have equally many records: {sizes}")
        whole = self._jobs[0][2].positions if self._jobs else range(limit or 0)
        self.positions = whole if limit is None else range(whole.start, min(whole.stop, whole.start + limit))
        """Positions of this job, in the order of the whole data set."""
        self._everything = self.positions

    def part(self, positions: range) -> JobFeed:
        """The same, of ``positions`` alone."""
        feed = copy.copy(self)
        feed.positions = positions
        return feed

    def requests(self, batch_size: int, start: int | None = None, *, whole: bool = False) -> Iterator[Request]:
        """Batches from position ``start`` on. Batches are cut at multiples of the batch size, wherever they begin.

        ``whole`` ones are those of an uninterrupted job in one piece: the first may begin before ``start``, the last
        end after the positions of this job.
        """
        at, end = self.positions.start if start is None else start, self.positions.stop
        if whole and at < end:
            at = max(at // batch_size * batch_size, self._everything.start)
            end = min(-(-end // batch_size) * batch_size, self._everything.stop)
        while at < end:
            stop = min((at // batch_size + 1) * batch_size, end)
            yield Request(at, stop - at)
            at = stop

    def first_batch(self, batch_size: int) -> Stored:
        """The first batch of the whole job."""
        return self.samples(Request(self._everything.start, min(batch_size, len(self._everything))))

    def places(self, positions: I64) -> I64:
        """Places of samples among those of this job, as requests and outputs count them."""
        return positions

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """The samples of the batch at ``request``."""
        per_reader = {i: job.samples(request.start, request.n, source) for i, source, job in self._jobs}
        return next(iter(per_reader.values()), numbered(request)), per_reader


class EndlessFeed:
    """Epoch after epoch, by DALI's rules of wrapping, padding and shards."""

    def __init__(self, sources: Sources) -> None:
        self.states: Mapping[int, Any] = sources.states
        self.kinds = sources.decided.kinds
        self._orders: list[tuple[int, Source, Order]] = [(i, s, o) for i, _, _, s, o in sources.readers]

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """The samples of the batch at ``request``."""
        per_reader = {i: order.samples(request.start, request.n, source) for i, source, order in self._orders}
        return (next(iter(per_reader.values())) if per_reader else numbered(request)), per_reader


def numbered(request: Request) -> Samples:
    """Samples of a graph without readers: numbered by position."""
    position = np.arange(request.start, request.start + request.n, dtype=np.int64)
    slot, epoch = _counted(request.n)
    return Samples.of_epoch_0(slot, epoch, position, _NAMELESS)


_NAMELESS = NoOrigins()


@lru_cache(8)
def _counted(n: int) -> tuple[I32, I64]:
    """Slots and epochs of ``n`` samples; all batches have the same."""
    return np.arange(n, dtype=np.int32), np.zeros(n, np.int64)
