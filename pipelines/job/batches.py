"""Batches: the finished batches of a job, each with what became of every one of its positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ops.batch import Batch, Origin, Samples
from ...writers.shards.left_out import NOTHING_LEFT_OUT, LeftOutRows, left_out_rows
from ...writers.shards.rejects import RejectRow
from ..compile.plan import Plan
from ..engine.engine import Engine, InFlightBatch, Options
from ..engine.inputs import JobFeed
from ..engine.nodes.envs import gone
from ..engine.nodes.node_pass import Dropped, Loss, left_out, rejected
from ..engine.stats import Stats
from ..engine.warm_up import warm_up
from .report import build_report


@dataclass(frozen=True, slots=True)
class Finished:
    """Positions [start, stop), finished."""

    start: int
    stop: int
    samples: Samples
    """Those that are to be written."""
    outputs: Mapping[str, Batch]
    rejects: list[RejectRow]
    number: int
    """Of the batch."""
    left_out: LeftOutRows = NOTHING_LEFT_OUT


@dataclass(frozen=True, slots=True)
class Stretch:
    """The positions of a run, and how it takes them."""

    feed: JobFeed
    first: int
    """The position where it begins."""
    batch_size: int
    whole: bool
    """Batches are those of an uninterrupted job: a sample's result depends on the rest of its batch."""
    trace: bool
    wanted: frozenset[tuple[int, int]] | None = None
    """Where samples are split: of the parts only these (position, part), and all of a position with part -1."""

    @property
    def stop(self) -> int:
        """The position after the last one."""
        return self.feed.positions.stop


class Batches:
    """The batches of a plan that one engine runs."""

    def __init__(self, plan: Plan, stretch: Stretch, options: Options) -> None:
        self.plan = plan
        self.stretch = stretch
        options = replace(options, whole_batches=stretch.whole, merge_requests=not stretch.whole)
        requests = stretch.feed.requests(stretch.batch_size, stretch.first, whole=stretch.whole)
        self.engine = Engine(plan, stretch.feed, requests, options, Stats(trace=stretch.trace))

    def warm_up(self, sink: Callable[[Mapping[str, Batch]], object]) -> float:
        """Compile what the run will need; the seconds taken. ``sink`` is given outputs of a few samples."""
        return self._warmed(self.engine, sink)

    def _warmed(self, engine: Engine, sink: Callable[[Mapping[str, Batch]], object]) -> float:
        s = self.stretch
        return warm_up(
            engine.plan, s.feed, s.first, s.stop - s.first, engine.options.rng, sink, engine.services.isolation,
            engine.budget.host,
        )  # fmt: skip

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the run promptly."""
        self.engine.stop()

    def __iter__(self) -> Iterator[Finished]:
        for iteration in self.engine:
            yield self._finished(iteration)

    def _finished(self, it: InFlightBatch) -> Finished:
        s, low = self.stretch, it.request.start
        start, stop = max(low, s.first), min(low + it.request.n, s.stop)
        samples, outputs = it.samples, it.outputs(self.plan)
        rows = list(rows_of(it.dropped, it.position_of, it.origin_of, replaced=it.replaced))
        omitted = rows_left_out(self.plan, it)
        if stop - start < it.request.n:  # the batch was taken whole, but some of it is written already
            places = s.feed.places(samples.position)
            where = np.flatnonzero((places >= start) & (places < stop))
            samples = samples.take(where)
            outputs = {name: batch.take(where, samples) for name, batch in outputs.items()}
            rows = [r for r in rows if start <= int(s.feed.places(np.array([r.position]))[0]) < stop]
            places = s.feed.places(omitted.positions)
            omitted = omitted.take(np.flatnonzero((places >= start) & (places < stop)))
        return Finished(start, stop, samples, outputs, rows, it.number, omitted)

    def report(self, seconds: float, counts: Mapping[str, int], sink_seconds: float) -> dict[str, Any]:
        """The report of the run so far; see `build_report`."""
        return build_report(self.engine, seconds, counts, sink_seconds=sink_seconds)


def rows_left_out(plan: Plan, iteration: InFlightBatch) -> LeftOutRows:
    """Lines of left_out.jsonl for the samples of a batch that were left out on purpose."""
    everyone, found = iteration.all_samples, []
    for lost in left_out(iteration.dropped):
        samples = everyone.take(np.searchsorted(everyone.slot, lost.slots))
        condition = next((getattr(n.op, "condition", "") for n in plan.graph.nodes if n.name == lost.node), "")
        found.append(left_out_rows(samples, lost.node, condition, lost.values))
    return LeftOutRows.joined(found)


def rows_of(
    dropped: Iterable[Loss], position_of: Callable[[Dropped], int], origin_of: Callable[[Dropped], Origin],
    *, replaced: bool = False, part_of: Callable[[Dropped], int] = lambda _: -1,
) -> Iterator[RejectRow]:  # fmt: skip
    """Lines of the reject log for samples that were dropped, or noted."""
    dropped = list(dropped)
    lost = gone(dropped)
    for d in rejected(dropped):
        if d.kept and d.slot in lost:  # by another operator, later
            continue
        origin = origin_of(d)
        yield RejectRow(position_of(d), origin.key, origin.source, origin.record, origin.offset, d.node, d.code,
                        d.message, replaced and not d.kept, d.kept, part_of(d))  # fmt: skip
