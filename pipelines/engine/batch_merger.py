"""Take requests from the schedule, merge small ones for one launch, and look up their samples.

Used by `HostExecutor`, and by the classes of `caller_thread`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from ...readers.base import Reader
from .batch_budget import BatchBudget
from .credits import Credits
from .in_flight import InFlightBatch, Request, draws_of
from .services import Services


class BatchMerger:
    """Turns the program's requests for batches into batches to compute: one per request, or one for several small
    requests. Created by `Engine`. One thread at a time uses the object: the caller's while it computes batches itself,
    later the thread that reads."""

    def __init__(self, services: Services, budget: BatchBudget, credits: Credits, schedule: Iterator[Request]) -> None:
        self._services = services
        self._budget = budget
        self.credits = credits
        self._schedule = schedule
        plan, options = services.plan, services.options
        self.number = 0
        """Number that the next batch gets, counted from 0."""
        self.merge_requests = (
            options.merge_requests
            and all(isinstance(n.op, Reader) for n in plan.graph.nodes if n.op.per_batch)
            and not (
                options.whole_batches and len(plan.target.indices) > 1
            )  # several devices take turns, batch by batch
        )
        """Whether several small requests may become one batch in flight."""
        self._draws_numbers = options.rng != "dali" and any(n.op.random for n in plan.graph.nodes)

    def one(self, max_samples: int | None) -> InFlightBatch | None:
        """Return the next batch, without reserving memory for it. If it would have more than ``max_samples`` samples,
        return None; its request then stays the next one. Raises StopIteration after the last request."""
        request = next(self._schedule)
        if max_samples is not None and request.n > max_samples:
            self._schedule = chain((request,), self._schedule)
            return None
        samples, per_reader = self._services.feed.samples(request)
        it = InFlightBatch((self.number,), request, samples, per_reader, samples, draws=draws_of((request,)))
        self.number += 1
        return it

    def batches(self) -> Iterator[InFlightBatch]:
        """Yield each batch, with its samples, as soon as the memory budget has room for the batch. Batches are in the
        order of the requests."""
        for number, merged in enumerate(self._requests(), self.number):
            request = Request(merged[0].start, sum(r.n for r in merged))
            self._budget.host.reserve((number,), int(self.credits.sample_bytes * request.n))
            if self._budget.device is not None:  # for files that are uploaded while they are read
                self._budget.device.reserve((number,), int(self.credits.file_bytes * request.n), wait=False)
            samples, per_reader = self._services.feed.samples(request)
            if self._draws_numbers:
                _ = samples.keys  # computed here, where the caches hold such data and not images
            draws = draws_of(merged)
            yield InFlightBatch((number,), request, samples, per_reader, samples, requests=merged, draws=draws)

    def _requests(self) -> Iterator[tuple[Request, ...]]:
        """Yield the requests in groups, each of which becomes one batch. `Credits` decides the size of groups."""
        schedule = iter(self._schedule)
        for request in schedule:
            count = self.credits.requests(request.n) if self.merge_requests else 1
            yield request, *islice(schedule, count - 1)
