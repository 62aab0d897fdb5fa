"""The batches of a job that makes several items of one sample (`split_samples`).

Two engines run one after the other. The first computes what comes before the split; its batches are cut into pieces,
each of which holds all items of some samples and is a batch of the second engine. So shards, journals and resumption
count in positions of original samples, and nothing depends on how many items there are. Used by `JobRun`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import I32, I64, Batch, Samples
from ...writers.shards.left_out import NOTHING_LEFT_OUT, LeftOutRows
from ...writers.shards.rejects import RejectRow
from ..compile.split_job import SplitPlans
from ..engine.engine import Engine, InFlightBatch, Options, Request
from ..engine.first_sample import Decided, first_part, undecided
from ..engine.nodes.envs import gone
from ..engine.nodes.node_pass import Dropped, rejected
from ..engine.stats import Stats
from .batches import Batches, Finished, RunRange, rows_left_out, rows_of
from .report import build_report


@dataclass(frozen=True, slots=True)
class Lost:
    """A sample that was dropped before it could be split into items. Created by `PartsFeed`."""

    dropped: Dropped
    position: int
    samples: Samples
    """The identity of this one sample, as a `Samples` object of length 1."""


@dataclass(slots=True)
class PartBatch:
    """A batch of items (such as frames of a video) for the engine that runs the graph after `split_samples`. It has all
    items of the samples at the positions [start, stop). Samples in ``lost`` and ``left_out`` have no items. Created by
    `PartsFeed`."""

    start: int
    stop: int
    lost: list[Lost]
    left_out: LeftOutRows
    samples: Samples
    batches: tuple[Batch, ...]
    first: int = 0
    """Number of the batch's first item, counted over the whole run."""


class PartsFeed:
    """Source of samples for the second engine of a job with `split_samples`: the items (such as frames of a video) into
    which the samples of the first engine are split. Created by `PartsBatches`. The reading thread of the second engine
    calls `requests`, which takes batches from the first one."""

    def __init__(self, split_plans: SplitPlans, run_range: RunRange, front: Engine) -> None:
        self._split_plans = split_plans
        self._run_range = run_range
        self._front = front
        self.at = run_range.first
        """The position up to which batches of items (`PartBatch`) were created."""
        self.lost: list[Lost] = []
        """Samples from position `at` on that were dropped before the split. The thread that takes requests writes this
        and `at`; the caller's thread reads them when the run is over."""
        self.left_out = NOTHING_LEFT_OUT
        """Samples from position `at` on that were left out on purpose. The same threads as for `lost` write and read
        it."""
        self.states: Mapping[int, Any] = {split_plans.source: self}
        edges = undecided(split_plans.back)
        env = first_part(split_plans, run_range.feed.states, run_range.feed.stored()) if edges else {}
        self.kinds = Decided.by(env, edges).kinds
        self._in_flight: deque[PartBatch] = deque()
        """Batches of items that were requested and are not delivered yet. The thread that takes requests appends, the
        caller's thread removes."""

    # -- for the engine -------------------------------------------------------------------------------------------

    def requests(self) -> Iterator[Request]:
        """Yield one request for each batch of items."""
        first = 0
        for iteration in self._front:
            for piece in self._pieces(iteration):
                piece.first = first
                first += len(piece.samples)
                self._in_flight.append(piece)
                yield Request(piece.first, len(piece.samples))

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        """Return the items of the batch that ``request`` asks for."""
        piece = next(p for p in reversed(self._in_flight) if p.first == request.start)
        return piece.samples, {self._split_plans.source: piece.samples}

    def take(self, samples: Samples) -> tuple[Batch, ...]:
        """Return the data of the items ``samples``, which belong to one batch. Items that were dropped since are not
        among them."""
        piece = next(p for p in list(self._in_flight) if _same(p.samples, samples))
        if len(samples) == len(piece.samples):
            return piece.batches
        indices = np.searchsorted(piece.samples.slot, samples.slot)
        return tuple(b.take(indices, samples) for b in piece.batches)

    def close(self) -> None:
        """Do nothing: another object (the feed of the engine before the split) owns the data sets."""

    # -- for the job ----------------------------------------------------------------------------------------------

    def delivered(self) -> PartBatch:
        """Remove and return the oldest batch of items, which the engine has just delivered. (Batches are delivered in
        order.)"""
        return self._in_flight.popleft()

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _pieces(self, iteration: InFlightBatch) -> Iterator[PartBatch]:
        """Split a batch of the first engine into items, and yield batches of items of about the batch size. All items
        of a sample are in one batch. A sample without items belongs to the batch before, or to the next one if there is
        none."""
        outputs = iteration.outputs(self._split_plans.front)
        data = outputs[self._split_plans.data]
        owner, part = self._selected(iteration, data, outputs)
        counts = np.bincount(owner, minlength=len(data)).astype(np.int64)
        lost = [*self.lost, *_lost(iteration)]
        left_out = LeftOutRows.joined([self.left_out, rows_left_out(self._split_plans.front, iteration)])
        places, ends = self._run_range.feed.places(data.samples.position), np.cumsum(counts)
        with_items = np.flatnonzero(counts)
        a = 0
        while a < len(with_items):
            low = int(ends[with_items[a]] - counts[with_items[a]])
            b = max(a + 1, int(np.searchsorted(ends[with_items], low + self._run_range.batch_size, "right")))
            high = int(ends[with_items[b - 1]])
            stop = iteration.request.start + iteration.request.n if b == len(with_items) else int(places[with_items[b]])
            lost_here = [x for x in lost if self._place(x) < stop]
            lost = [x for x in lost if self._place(x) >= stop]
            before = self._run_range.feed.places(left_out.positions) < stop
            left_out_here, left_out = left_out.take(np.flatnonzero(before)), left_out.take(np.flatnonzero(~before))
            yield self._piece(stop, lost_here, left_out_here, outputs, owner[low:high], part[low:high])
            a = b
        self.lost, self.left_out = lost, left_out

    def _place(self, lost: Lost) -> int:
        return int(self._run_range.feed.places(np.array([lost.position]))[0])

    def _beside(self, outputs: Mapping[str, Batch]) -> list[Batch]:
        """Return further outputs of the first engine that are split like the main one, with the same samples."""
        slots = outputs[self._split_plans.data].samples.slot
        batches = [outputs[name] for name in self._split_plans.beside]
        return [b.take(np.searchsorted(b.samples.slot, slots)) for b in batches]

    def _selected(self, iteration: InFlightBatch, data: Batch, outputs: Mapping[str, Batch]) -> tuple[I64, I32]:
        """Return the items to process, in order: the index of each item's sample in ``data`` (int64), and the item's
        number within the sample (int32). Samples without items are dropped."""
        if not len(data):  # all samples were dropped, and the rank is not known
            return np.zeros(0, np.int64), np.zeros(0, np.int32)
        counts = self._split_plans.split.counts(data)
        for i in np.flatnonzero(counts == 0).tolist():
            shape, size = " x ".join(map(str, data.shapes[i].tolist())), self._split_plans.split.size
            self._drop(
                iteration, data, i, f"it has no part: its shape is {shape}" + f", a part has {size} items" * bool(size)
            )
        for other in self._beside(outputs):
            theirs = other.shapes[:, 0]
            for i in np.flatnonzero((counts > 0) & (theirs != data.shapes[:, 0])).tolist():
                self._drop(iteration, data, i, f"its inputs have {data.shapes[i, 0]} and {theirs[i]} items to split")
                counts[i] = 0
        owner, part = np.repeat(np.arange(len(data)), counts), _counted(counts)
        selected = self._run_range.selected
        if selected is None:
            return owner, part
        positions = data.samples.position[owner].tolist()
        pairs = zip(positions, part.tolist(), strict=True)
        is_selected = np.array([bool(selected & {(p, k), (p, -1)}) for p, k in pairs], np.bool_)
        for i in np.flatnonzero((counts > 0) & (np.bincount(owner[is_selected], minlength=len(data)) == 0)).tolist():
            self._drop(iteration, data, i, "the parts that were rejected no longer exist")
        return owner[is_selected], part[is_selected]

    def _drop(self, iteration: InFlightBatch, data: Batch, i: int, why: str) -> None:
        iteration.dropped.append(Dropped(int(data.samples.slot[i]), self._split_plans.name, "bad_shape", why))

    def _piece(
        self, stop: int, lost: list[Lost], left_out: LeftOutRows, outputs: Mapping[str, Batch], owner: I64, part: I32
    ) -> PartBatch:
        before = outputs[self._split_plans.data].samples
        cut = [outputs[self._split_plans.data], *self._beside(outputs)]
        samples = Samples(
            np.arange(len(owner), dtype=np.int32), before.position[owner], before.epoch[owner], before.index[owner],
            before.origins, part,
        )  # fmt: skip
        repeated = [outputs[name] for name in self._split_plans.repeated]
        batches = (
            *self._split_plans.split.parts(cut, owner, part, samples),
            *(b.take(np.searchsorted(b.samples.slot, before.slot[owner]), samples) for b in repeated),
        )
        start, self.at = self.at, stop
        return PartBatch(start, stop, lost, left_out, samples, batches)


def _lost(iteration: InFlightBatch) -> list[Lost]:
    """Return the samples of a batch that were dropped, or that are damaged but kept and only reported, ordered by
    position."""
    everyone, dropped = iteration.all_samples, gone(iteration.dropped)
    losses = []
    for d in rejected(iteration.dropped):
        if not (d.kept and d.slot in dropped):
            at = int(np.searchsorted(everyone.slot, d.slot))
            losses.append(Lost(d, int(everyone.position[at]), everyone.take(slice(at, at + 1))))
    return sorted(losses, key=lambda x: x.position)


def _same(piece: Samples, some: Samples) -> bool:
    """Return whether the items ``some`` (such as frames of a video) come from the batch of items ``piece``."""
    assert piece.part is not None
    assert some.part is not None
    at = int(some.slot[0])
    return at < len(piece) and piece.position[at] == some.position[0] and piece.part[at] == some.part[0]


def _counted(counts: I64) -> npt.NDArray[np.int32]:
    """Return the numbers 0 to n - 1 for each n in ``counts``, concatenated (int32)."""
    ends = np.cumsum(counts)
    return (np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)).astype(np.int32)


class PartsBatches(Batches):
    """Runs both engines of a job that splits its samples into items, and yields the finished batches of items. Created
    and stopped by `JobRun`; used by one thread."""

    def __init__(self, split_plans: SplitPlans, run_range: RunRange, options: Options) -> None:
        self.plan = split_plans.back
        self.run_range = run_range
        # Both engines run at the same time, each with half of the memory.
        options = replace(options, memory=replace(options.memory, host=max(1, options.memory.host_bytes() // 2)))
        self.front = Engine(
            split_plans.front, run_range.feed, run_range.feed.requests(run_range.batch_size, run_range.first),
            replace(options, whole_batches=False, lanes=1), Stats(),
        )  # fmt: skip
        self.parts = PartsFeed(split_plans, run_range, self.front)
        self.engine = Engine(
            split_plans.back, self.parts, self.parts.requests(), replace(options, whole_batches=True),
            Stats(trace=run_range.trace),
        )  # fmt: skip

    def warm_up(self, sink: Callable[[Mapping[str, Batch]], object]) -> float:
        """Compile the kernels of the graph before the split (the first engine), and return the seconds that this
        took."""
        return self._warm_up(self.front, lambda _: None)

    def stop(self) -> None:
        self.front.stop()  # stopped first: the other engine's reading thread may wait for it
        self.engine.stop()

    def __iter__(self) -> Iterator[Finished]:
        number = 0
        for it in self.engine:
            piece, number = self.parts.delivered(), it.number + 1
            rows = [*map(_row, piece.lost), *rows_of(it.dropped, it.position_of, it.origin_of, part_of=it.part_of)]
            omitted = LeftOutRows.joined([piece.left_out, rows_left_out(self.plan, it)])
            yield Finished(piece.start, piece.stop, it.samples, it.outputs(self.plan), rows, it.number, omitted)
        if self.parts.at < self.run_range.stop:
            rows = [_row(x) for x in self.parts.lost]
            yield Finished(
                self.parts.at, self.run_range.stop, Samples.numbered(0), {}, rows, number, self.parts.left_out
            )

    def report(self, seconds: float, counts: Mapping[str, int], sink_seconds: float) -> dict[str, Any]:
        """Return one report for both engines of the job: before and after `split_samples`. The stages of the second
        engine are numbered after those of the first."""
        first = build_report(self.front, seconds, counts)
        then = build_report(self.engine, seconds, counts, sink_seconds=sink_seconds)
        offset = len(self.front.plan.steps)

        def moved(row: Mapping[str, Any], key: str) -> dict[str, Any]:
            number, colon, name = str(row[key]).partition(":")
            return {**row, key: f"{int(number) + offset:02d}:{name}" if colon else row[key]}

        for key, place in (("operators", "stage"), ("stages", "id"), ("queues", "name")):
            before = [r for r in first[key] if r[place] != "write"]
            then[key] = [*before, *(moved(r, place) for r in then[key])]
        for key in ("rejected", "left_out", "decoders", "fallbacks", "uploads"):
            then[key] = dict(sorted((Counter(first[key]) + Counter(then[key])).items()))
        for name, times in first["decoder_times"].items():  # a decoder may run in both engines
            added = then["decoder_times"].get(name, {})
            then["decoder_times"][name] = {k: round(t + added.get(k, 0.0), 6) for k, t in times.items()}
        then["fused"] = [*first["fused"], *then["fused"]]
        then["loads"] = {k: max(first["loads"].get(k, 0.0), then["loads"].get(k, 0.0))
                         for k in first["loads"] | then["loads"]}  # fmt: skip
        if first["bottleneck"]["share"] > then["bottleneck"]["share"]:
            then["bottleneck"] = first["bottleneck"]
        then["memory"]["host_peak_bytes"] += first["memory"]["host_peak_bytes"]
        then["memory"]["host_budget_bytes"] += first["memory"]["host_budget_bytes"]
        return then


def _row(lost: Lost) -> RejectRow:
    d, origin = lost.dropped, lost.samples.origin(0)
    return RejectRow(lost.position, origin.key, origin.source, origin.record, origin.offset, d.node, d.code, d.message,
                     kept=d.kept)  # fmt: skip
