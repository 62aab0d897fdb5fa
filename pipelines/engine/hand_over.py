"""Pass batches from thread to thread, in order; a batch that failed keeps its place.

Used by `Engine` and the executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from .in_flight import InFlightBatch
from .threads.channel import Channel, Closed


def taken(channel: Channel[InFlightBatch]) -> InFlightBatch:
    """Take the next batch from ``channel``. Wait until the worker threads have finished its chunks, or one chunk has
    failed. Raises Closed."""
    it = channel.get()
    if it.chunks is not None:
        began = time.perf_counter()
        channel.unfinished += not it.chunks.ended
        try:
            it.chunks.wait()
        except Closed:
            raise
        except BaseException as e:
            it.fail(e)
        it.chunks = None
        channel.waited_empty += time.perf_counter() - began
    return it


def arriving(inbox: Channel[InFlightBatch], out: Channel[InFlightBatch]) -> Iterator[InFlightBatch]:
    """Yield the batches of ``inbox`` in order; put batches that have failed directly into ``out``."""
    while True:
        it = taken(inbox)
        if it.problem is None:
            yield it
        else:
            out.put(it)


def put_failed(it: InFlightBatch, out: Channel[InFlightBatch], problem: BaseException) -> None:
    """Mark the batch as failed by ``problem`` and put it into ``out``, in order. The consumer raises ``problem`` when
    it takes the batch."""
    it.fail(problem)
    it.chunks = None  # not all chunks were given to the pool
    out.put(it)
