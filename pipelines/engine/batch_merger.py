"""Intake: the samples of the next batch, and how many batches of the schedule go through the steps together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from ...readers.base import Reader
from .batch_budget import BatchBudget
from .credits import Credits
from .in_flight import InFlightBatch, Request, draws_of
from .services import Services


class BatchMerger:
    """Batches in the order of the schedule. One thread at a time takes them: the caller's while batches are computed
    inline, then the one that reads."""

    def __init__(self, services: Services, budget: BatchBudget, credits: Credits, schedule: Iterator[Request]) -> None:
        self._services = services
        self._budget = budget
        self.credits = credits
        self._schedule = schedule
        plan, options = services.plan, services.options
        self.number = 0
        """Of the first batch that the threads make."""
        self.merge_requests = (
            options.merge_requests
            and all(isinstance(n.op, Reader) for n in plan.graph.nodes if n.op.per_batch)
            and not (options.whole_batches and len(plan.target.indices) > 1)  # which take turns, batch by batch
        )
        """Small batches may go through the steps together."""
        self._draws = options.rng != "dali" and any(n.op.random for n in plan.graph.nodes)

    def one(self, most: int | None) -> InFlightBatch | None:
        """The next batch, without an account; None, and it stays, where it has more than ``most`` samples. Raises
        StopIteration."""
        request = next(self._schedule)
        if most is not None and request.n > most:
            self._schedule = chain((request,), self._schedule)
            return None
        samples, per_reader = self._services.feed.samples(request)
        it = InFlightBatch((self.number,), request, samples, per_reader, samples, draws=draws_of((request,)))
        self.number += 1
        return it

    def batches(self) -> Iterator[InFlightBatch]:
        """Each batch with its samples, as soon as the account has room for it."""
        for number, asked in enumerate(self._requests(), self.number):
            request = Request(asked[0].start, sum(r.n for r in asked))
            self._budget.host.reserve((number,), int(self.credits.sample_bytes * request.n))
            if self._budget.device is not None:  # for files that go there while they are read
                self._budget.device.reserve((number,), int(self.credits.file_bytes * request.n), wait=False)
            samples, per_reader = self._services.feed.samples(request)
            if self._draws:
                _ = samples.keys  # worked out here, where the caches are full of such things, not of images
            draws = draws_of(asked)
            yield InFlightBatch((number,), request, samples, per_reader, samples, requests=asked, draws=draws)

    def _requests(self) -> Iterator[tuple[Request, ...]]:
        """The requests of the schedule, several of them together if `Credits` says so."""
        schedule = iter(self._schedule)
        for request in schedule:
            count = self.credits.requests(request.n) if self.merge_requests else 1
            yield request, *islice(schedule, count - 1)
