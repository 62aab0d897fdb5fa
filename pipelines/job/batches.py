"""Iterate over the finished batches of a job, each with the outcome of every one of its positions. Used by `JobRun`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ops.batch import Batch, Origin, Samples
from ...writers.shards.left_out import NOTHING_LEFT_OUT, LeftOutRows, left_out_rows, rows_without_position
from ...writers.shards.rejects import RejectRow
from ..compile.plan import Plan
from ..engine.engine import Engine, InFlightBatch, Options
from ..engine.inputs import JobFeed, Sources
from ..engine.nodes.envs import gone
from ..engine.nodes.node_pass import Dropped, Loss, left_out, rejected
from ..engine.stats import Stats
from ..engine.warm_up import warm_up
from .report import build_report


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished batch of a job: the outputs for the positions [start, stop). Created by `Batches`."""

    start: int
    stop: int
    samples: Samples
    """The samples that remain, to be written."""
    outputs: Mapping[str, Batch]
    rejects: list[RejectRow]
    number: int
    """Number of the batch in the run."""
    left_out: LeftOutRows = NOTHING_LEFT_OUT


@dataclass(frozen=True, slots=True)
class RunRange:
    """The range of positions (in the order of all samples) that one run of a job processes, and options of the run.
    Created by `JobRun`."""

    feed: JobFeed
    first: int
    """First position to process."""
    batch_size: int
    whole: bool
    """Whether batches must have the same borders as in an uninterrupted job, because a sample's result depends on the
    rest of its batch."""
    trace: bool
    selected: frozenset[tuple[int, int]] | None = None
    """For jobs that split samples into items: the (position, item) pairs to process. Item -1 stands for all items of
    the position. None to process all samples."""

    @property
    def stop(self) -> int:
        """The position after the last one to process."""
        return self.feed.positions.stop


class Batches:
    """The batches of one run of a job: iterating over it runs an engine over a range of samples and yields finished
    batches. Created and stopped by `JobRun`; used by one thread."""

    def __init__(self, plan: Plan, run_range: RunRange, options: Options) -> None:
        self.plan = plan
        self.run_range = run_range
        options = replace(options, whole_batches=run_range.whole, merge_requests=not run_range.whole)
        requests = run_range.feed.requests(run_range.batch_size, run_range.first, whole=run_range.whole)
        self.engine = Engine(plan, run_range.feed, requests, options, Stats(trace=run_range.trace))

    def warm_up(self, sink: Callable[[Mapping[str, Batch]], object]) -> float:
        """Compile the kernels that the run needs, and return the seconds that it took. ``sink`` is called with outputs
        of a few samples, to compile the writer's code, too."""
        return self._warm_up(self.engine, sink)

    def _warm_up(self, engine: Engine, sink: Callable[[Mapping[str, Batch]], object]) -> float:
        s = self.run_range
        return warm_up(
            engine.plan, s.feed, s.first, s.stop - s.first, engine.options.rng, sink, engine.services.isolation,
            engine.budget.host,
        )  # fmt: skip

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the run soon: nothing new is started."""
        self.engine.stop()

    def __iter__(self) -> Iterator[Finished]:
        for iteration in self.engine:
            yield self._finished(iteration)

    def _finished(self, it: InFlightBatch) -> Finished:
        s, low = self.run_range, it.request.start
        start, stop = max(low, s.first), min(low + it.request.n, s.stop)
        samples, outputs = it.samples, it.outputs(self.plan)
        rows = list(rows_of(it.dropped, it.position_of, it.origin_of, replaced=it.replaced))
        omitted = rows_left_out(self.plan, it)
        if stop - start < it.request.n:  # the batch was computed completely, but some of it was written before
            places = s.feed.places(samples.position)
            indices = np.flatnonzero((places >= start) & (places < stop))
            samples = samples.take(indices)
            outputs = {name: batch.take(indices, samples) for name, batch in outputs.items()}
            rows = [r for r in rows if start <= int(s.feed.places(np.array([r.position]))[0]) < stop]
            places = s.feed.places(omitted.positions)
            omitted = omitted.take(np.flatnonzero((places >= start) & (places < stop)))
        return Finished(start, stop, samples, outputs, rows, it.number, omitted)

    def report(self, seconds: float, counts: Mapping[str, int], sink_seconds: float) -> dict[str, Any]:
        """Return `build_report`'s report of the run so far. ``sink_seconds``: time that the writer took."""
        return build_report(self.engine, seconds, counts, sink_seconds=sink_seconds)


def rows_unplaced(sources: Sources) -> Iterator[tuple[str, LeftOutRows]]:
    """Yield the rows of left_out.jsonl for the records that readers left out, in blocks, with the reader's name."""
    for name, origins, condition in sources.unplaced():
        yield name, rows_without_position(origins, name, condition)


def rows_left_out(plan: Plan, iteration: InFlightBatch) -> LeftOutRows:
    """Return the rows of left_out.jsonl for samples that the spec left out of a batch (`keep_if`)."""
    everyone, tables = iteration.all_samples, []
    for lost in left_out(iteration.dropped):
        samples = everyone.take(np.searchsorted(everyone.slot, lost.slots))
        condition = next((getattr(n.op, "condition", "") for n in plan.graph.nodes if n.name == lost.node), "")
        tables.append(left_out_rows(samples, lost.node, condition, lost.values))
    return LeftOutRows.joined(tables)


def rows_of(
    dropped: Iterable[Loss], position_of: Callable[[Dropped], int], origin_of: Callable[[Dropped], Origin],
    *, replaced: bool = False, part_of: Callable[[Dropped], int] = lambda _: -1,
) -> Iterator[RejectRow]:  # fmt: skip
    """Yield the rows of the reject log for a batch: samples that were dropped, and damaged ones that were kept."""
    dropped = list(dropped)
    removed = gone(dropped)
    for d in rejected(dropped):
        if d.kept and d.slot in removed:  # a later operator dropped the sample
            continue
        origin = origin_of(d)
        yield RejectRow(position_of(d), origin.key, origin.source, origin.record, origin.offset, d.node, d.code,
                        d.message, replaced and not d.kept, d.kept, part_of(d))  # fmt: skip
