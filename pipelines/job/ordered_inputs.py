"""Order the records of data sets with later additions: first those of the job's first run, then those of each addition.
So old samples keep their numbers, keys and random numbers.

Used by jobs with `--append` and by retries. A stage here is the first run, or one addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...ops.batch import I64, Batch, BatchedOrigins, Origin, Samples, origins_of
from ...ops.context import Context
from ...ops.errors import JobError, SpecError
from ...ops.storage.inventory import InventoryEntries
from ...readers.base import Source
from ..engine.engine import Request
from ..engine.first_sample import MAX_TRIED, Decided, Stored, first_sample, undecided
from ..engine.inputs import JobFeed, Sources, inventory_of


class RenumberedSource(BatchedOrigins):
    """A view of a data set in which record ``i`` is record ``numbers[i]`` of the original. Created by `Lineup`."""

    def __init__(self, source: Source, numbers: I64, groups: I64 | None) -> None:
        self.groups = groups
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def origins_of(self, index: I64) -> list[Origin]:
        return origins_of(self._source, self._numbers[index])

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        numbers, zeros = self._numbers[index], np.zeros(len(index), np.int64)
        return Samples.of_epoch_0(zeros.astype(np.int32), zeros, numbers, self._source).names()

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        s = ctx.samples
        inner = Samples(s.slot, s.position, s.epoch, self._numbers[s.index], self._source)
        return tuple(b.replace(samples=s) for b in self._source.fetch(replace(ctx, samples=inner)))

    def fingerprint(self) -> str:
        return self._source.fingerprint()

    def inventory(self) -> InventoryEntries:
        return inventory_of(self._source)

    def close(self) -> None:
        """Do nothing: the object that opened the original data set also closes it."""


class Lineup:
    """The order of the records of a plan's data sets if inputs were added later. First come the records of the first
    run, then those of each addition; each of these groups is a stage. Created by `additions`; used by the job's reading
    thread."""

    def __init__(self, sources: Sources, stages: Sequence[Mapping[str, I64]]) -> None:
        """``stages``: for each stage, by reader name, the indices of the stage's files in the present inventory of the
        data set. Raises SpecError if a reader leaves out records by number, JobError if the readers have different
        numbers of records."""
        self.states, self._plan = dict(sources.states), sources.plan
        self._readers: list[tuple[int, Source, I64]] = []
        self._epochs: list[I64 | None] = []
        """For each reader, by position of the sample: how many times the reader has passed over its whole data set
        before. None if always 0."""
        self._stored: list[I64] = []
        """For each reader: the numbers of its first records in stored order, at most `MAX_TRIED`."""
        self.ends: list[int] = []
        """For each stage (the first run, then each addition), the position after the last sample of the stage."""
        for node, name, op, source, order in sources.readers:
            if len(stages) > 1 and (op.skip or op.limit is not None or op.num_shards > 1):
                raise SpecError(f"{name}: inputs cannot be added to a job whose reader has skip, limit or num_shards")
            if len(stages) > 1 and order.job().epochs is not None:
                raise SpecError(f"{name}: inputs cannot be added to a mixture: all of its order would change")
            chosen = op.chosen_of(source) if len(stages) > 1 else None
            now = inventory_of(source)
            numbers: list[I64] = []
            orders: list[I64] = []
            first = 0
            for places in (stage[name] for stage in stages):
                records = now.record_numbers(places)
                if len(stages) == 1:  # the reader's own order; records may be left out
                    orders.append(order.job().index)
                else:
                    groups = now.records[places] if source.groups is not None else None
                    order_of_stage = op.order(
                        len(records), order.seed, order.batch_size, groups, None if chosen is None else chosen[records]
                    )
                    order = order_of_stage if not orders else order
                    orders.append(order_of_stage.job().index + first)
                numbers.append(records)
                first += len(records)
            ends = np.cumsum([len(o) for o in orders]).tolist()
            if self.ends and self.ends != ends:
                raise JobError(f"the readers of one job must have the same number of records; {name} differs")
            self.ends = ends
            counts = now.records[np.concatenate([s[name] for s in stages])] if source.groups is not None else None
            view = RenumberedSource(source, np.concatenate(numbers), counts)
            self.states[node] = view
            self._readers.append((node, view, np.concatenate(orders)))
            self._epochs.append(order.job().epochs if len(stages) == 1 else None)
            self._stored.append(order.records(np.arange(min(order.size, MAX_TRIED))))

    def positions(self, stage: int) -> range:
        """Return the positions of the samples of stage number ``stage``: 0 is the first run, then come the
        additions."""
        return range(self.ends[stage - 1] if stage else 0, self.ends[stage])

    def stored(self) -> Iterator[Stored]:
        """Yield the first records of the first run's inputs in stored order, as `Sources.stored` did in that run."""
        slot, zeros = np.zeros(1, np.int32), np.zeros(1, np.int64)
        for i in range(min(self.ends[0], MAX_TRIED)):
            per_reader = {
                n: Samples.of_epoch_0(slot, zeros, stored[i : i + 1], view)
                for (n, view, _), stored in zip(self._readers, self._stored, strict=True)
            }
            yield next(iter(per_reader.values())), per_reader

    @cached_property
    def decided(self) -> Decided:
        """Types and ranks that the first sample of the first run's inputs decides; see `Sources.decided`."""
        edges = undecided(self._plan)
        return Decided.by(first_sample(self._plan, self.states, self.stored(), edges), edges)

    def key(self, position: int) -> str | None:
        """Return the key that the first reader gives the sample at ``position``; None if there is no such sample."""
        _, view, index = self._readers[0]
        return view.origin(int(index[position])).key if 0 <= position < len(index) else None

    def samples(self, position: I64) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the samples at the positions ``position``, and the samples of each reader by its node id."""
        slot, zeros = np.arange(len(position), dtype=np.int32), np.zeros(len(position), np.int64)
        per_reader = {
            n: Samples(slot, position, zeros if epochs is None else epochs[position], index[position], view)
            for (n, view, index), epochs in zip(self._readers, self._epochs, strict=True)
        }
        return next(iter(per_reader.values())), per_reader


class LineupFeed(JobFeed):
    """Source of samples for a job that processes only some positions of a `Lineup` (the order of first and added
    records), in ascending order. Requests count only these selected positions. Created by jobs with additions and by
    retries."""

    def __init__(self, lineup: Lineup, selected: Sequence[int], decided: Decided | None = None) -> None:
        """``decided``: types and ranks that the first sample of the data set decides, from the job's journal. If None,
        the first sample is examined again."""
        self.states, self.stored = lineup.states, lineup.stored
        self.decided = lineup.decided if decided is None else decided
        self.kinds = self.decided.kinds
        self._jobs = []
        self._lineup = lineup
        self._selected = np.asarray(selected, np.int64)
        self.positions = self._all_positions = range(len(self._selected))

    def places(self, positions: I64) -> I64:
        """Return the index of each of ``positions`` in the list of selected positions."""
        return np.searchsorted(self._selected, positions)

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return ``request.n`` of the selected samples, from number ``request.start`` on, and the samples of each
        reader by its node id."""
        return self._lineup.samples(self._selected[request.start : request.start + request.n])
