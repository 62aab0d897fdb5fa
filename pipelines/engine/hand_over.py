"""Hand-over: batches between threads, in order, with what failed in its turn."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .in_flight import InFlightBatch
from .threads.channel import Channel, Closed


def taken(channel: Channel[InFlightBatch]) -> InFlightBatch:
    """The next batch, when its chunks are done, or one of them has failed. Raises Closed."""
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
    """Batches as they come. One that has failed is handed on after those before it: nothing is done with it."""
    while True:
        it = taken(inbox)
        if it.problem is None:
            yield it
        else:
            out.put(it)


def hand_on_failed(it: InFlightBatch, out: Channel[InFlightBatch], problem: BaseException) -> None:
    """The batch has failed: it is handed on after those before it, and ``problem`` is raised where it is taken."""
    it.fail(problem)
    it.chunks = None  # not all of them are in the pool
    out.put(it)
