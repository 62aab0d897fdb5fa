"""Intake: the samples of the next batch, and how many batches of the schedule go through the steps together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from ...readers.base import Reader
from .batch_budget import BatchBudget
from .in_flight import Iteration, Request, draws_of
from .services import Services

_LAUNCH = 2048
"""Samples that are launched together where batches are smaller: what a launch costs the host, and the ends of kernels
at which few samples are left, count once (one H200: 332k images/s of 1,024, 374k of 2,048)."""

_LAUNCH_RETURNED = 1024
"""The same where results go back to the host: twice as much page-locked memory takes longer to make than such
launches save (340,000 images from JPEG to JPEG: 129k images/s with 1,024, 111k with 2,048; in its middle 143k and
152k)."""

_LAUNCH_BYTES = 512 << 20
"""Bytes that samples which are launched together may take on the host."""

_LAUNCH_COPIED = 128 << 20
"""The same, in page-locked memory that is made for them: those of 1,024 JPEGs of ImageNet, or of 400 sounds of ten
seconds. Some twenty buffers of that size are made before a run is at its full speed, and that takes long."""


class Intake:
    """Batches in the order of the schedule. One thread at a time takes them: the caller's while batches are computed
    inline, then the one that reads."""

    def __init__(self, services: Services, budget: BatchBudget, schedule: Iterator[Request]) -> None:
        self._services = services
        self._budget = budget
        self._schedule = schedule
        plan, options = services.plan, services.options
        self.number = 0
        """Of the first batch that the threads make."""
        self.sample_bytes = 0.0
        """Of a sample, in that batch that was read where they are largest. Set by readers' threads; a late value costs
        accuracy of the account, nothing else."""
        self.copied_bytes = 0.0
        """Of a sample of the batch that was read last, in arrays that are uploaded as a whole: none once a GPU is open
        that gets files in pieces. Set as the above."""
        self.launch_room = 0
        """Samples that one launch may hold, once that is known. Set by the launching thread."""
        self.together = (
            options.together
            and any(s.kind == "device" for s in plan.steps)
            and all(isinstance(n.op, Reader) for n in plan.graph.nodes if n.op.per_batch)
            and not (options.whole_batches and len(plan.target.indices) > 1)  # which take turns, batch by batch
        )
        """Small batches may go onto the device together."""
        self._most = _LAUNCH_RETURNED if options.to_host else _LAUNCH
        self._draws = options.rng != "dali" and any(n.op.random for n in plan.graph.nodes)

    def one(self, most: int | None) -> Iteration | None:
        """The next batch, without an account; None, and it stays, where it has more than ``most`` samples. Raises
        StopIteration."""
        request = next(self._schedule)
        if most is not None and request.n > most:
            self._schedule = chain((request,), self._schedule)
            return None
        samples, per_reader = self._services.feed.samples(request)
        it = Iteration((self.number,), request, samples, per_reader, samples, draws=draws_of((request,)))
        self.number += 1
        return it

    def batches(self) -> Iterator[Iteration]:
        """Each batch with its samples, as soon as the account has room for it."""
        for number, asked in enumerate(self._requests(), self.number):
            request = Request(asked[0].start, sum(r.n for r in asked))
            self._budget.host.hold((number,), int(self.sample_bytes * request.n))
            samples, per_reader = self._services.feed.samples(request)
            if self._draws:
                _ = samples.keys  # worked out here, where the caches are full of such things, not of images
            draws = draws_of(asked)
            yield Iteration((number,), request, samples, per_reader, samples, asked=asked, draws=draws)

    def _requests(self) -> Iterator[tuple[Request, ...]]:
        """The schedule, small batches together: to launch one takes the host as long as to launch a large one. What is
        launched at a time is a small part of what was before, so that a short run keeps all threads and GPUs busy, and
        a power of two of batches, so that buffers come in few sizes: to make one that is page-locked takes long."""
        schedule, before = iter(self._schedule), 0
        for request in schedule:
            most = min(self._most, self.launch_room, before // (4 * len(self._services.plan.target.indices)))
            for nbytes, each in ((_LAUNCH_BYTES, self.sample_bytes), (_LAUNCH_COPIED, self.copied_bytes)):
                most = min(most, int(nbytes / each)) if each else most
            count = most // max(1, request.n) if self.together else 1
            asked = request, *islice(schedule, (1 << max(1, count).bit_length() - 1) - 1)
            before += sum(r.n for r in asked)
            yield asked
