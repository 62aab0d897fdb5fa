"""Threads that work next to the one that delivers batches: they frame and write large records, compute checksums of
files, and publish complete shards. `Publisher` owns them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ...ops.errors import without_frames

WAITING = (128 << 20, 1 << 30)
"""Smallest and largest limit on the bytes that wait in memory to be written."""
_OF_BUDGET = 32
"""Divisor: the limit on bytes that wait to be written is this fraction of the host's memory budget, within the bounds
WAITING. Bytes come in order, so several files are written at the same time only if more bytes wait than one shard has:
260 MB of shards, with 2.5 GB/s per file, are written at 4.0 GB/s with 128 MiB waiting, at 9.4 GB/s with 512 MiB."""
WRITERS = 4
"""Number of files that are written at the same time. The system lets one thread at a time write to a file, at 2 to 3
GB/s into memory; if records come faster, the next shard starts while the last one is still being written."""
FRAMERS = 3
"""Number of shards whose large records are framed (converted to the format's bytes) and hashed at the same time. One
thread computes all three checksums of TFRecord's bytes at 3.5 GB/s, and waits for the GIL after each of its calls."""
_TO_FRAME = 3
"""Divisor: the limit on bytes that wait to be framed (converted to the format's bytes) is the limit on bytes that wait
to be written, divided by this number."""
_SHARDS = 3
"""Number of complete shards that may wait to be published. While these go to the disk, later shards are written."""


class WorkQueue:
    """A bounded queue of work, which is done in order by one thread, or by several threads with a queue each.

    ``limit`` bounds the sum of the weights in all queues. If work of an owner (a file or shard) fails, the owner's
    remaining work is dropped and no more is accepted for it. Work of other owners continues, also in the same thread,
    until `check` has raised the failure. All methods may be called from any thread.
    """

    def __init__(self, name: str, limit: int, threads: int = 1) -> None:
        self._limit = limit
        self._pools = [ThreadPoolExecutor(1, name) for _ in range(threads)]
        self._changed = threading.Condition()
        self._waiting = [0] * threads
        self._error: BaseException | None = None
        """The exception of the first work that failed; None if none did."""
        self._failed: set[object] = set()
        """Owners (files or shards) of which some work failed."""
        self._ended = False
        """Whether the queue is ended: waiting work is dropped, for all owners."""

    def least_busy(self) -> int:
        """Return the number of the thread with the least work in its queue."""
        return self._waiting.index(min(self._waiting))

    def put(
        self, work: Callable[[], object], weight: int = 1, thread: int = 0, owner: object | None = None
    ) -> Future[None]:
        """Enqueue ``work``, to be run after all earlier work of thread number ``thread``. Waits until the queues have
        capacity for ``weight``. ``owner``: the file or shard that the work is for; by default everything in this thread
        has one owner. Raises the queue's first failure if earlier work for the owner failed."""
        weight, owner = max(weight, 1), thread if owner is None else owner
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over(owner) or self.idle or sum(self._waiting) + weight <= self._limit
            )
            if self._is_over(owner):
                self.check()
            self._waiting[thread] += weight
        return self._pools[thread].submit(self._run, work, weight, thread, owner)

    def _is_over(self, owner: object) -> bool:
        return self._ended or owner in self._failed

    def _run(self, work: Callable[[], object], weight: int, thread: int, owner: object) -> None:
        try:
            if self._is_over(owner):
                self.check()
            work()
        except BaseException as e:
            with self._changed:
                self._error = self._error or without_frames(e)
                self._failed.add(owner)
            raise
        finally:
            with self._changed:
                self._waiting[thread] -= weight
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Drop all waiting work. ``error`` becomes the queue's failure, unless there is one already."""
        with self._changed:
            self._error = self._error or error
            self._ended = True
            self._changed.notify_all()

    def check(self) -> None:
        """Check that no work has failed. Raises the first failure."""
        if self._error is not None:
            raise self._error

    @property
    def idle(self) -> bool:
        """Whether no work waits in the queues or runs."""
        return not any(self._waiting)

    def drain(self) -> None:
        """Wait until all work that was put is done, or has failed."""
        with contextlib.suppress(RuntimeError):  # closed: all work is done
            for last in [pool.submit(lambda: None) for pool in self._pools]:
                last.result()

    def wait(self) -> None:
        """Wait until all work is done. Raises the first failure."""
        self.drain()
        self.check()

    def close(self) -> None:
        """End the queue's threads, once all work is done or has failed."""
        for pool in self._pools:
            pool.shutdown()


def waiting_for(budget: int) -> int:
    """Return how many bytes may wait in memory to be written, in a run with ``budget`` bytes of host memory."""
    least, most = WAITING
    return max(least, min(most, budget // _OF_BUDGET))


class WriterThreads:
    """The threads that write one output in the background; each starts when there is work for it. `Publisher` creates
    and stops them."""

    def __init__(self, waiting: int = WAITING[0]) -> None:
        """``waiting``: limit on the bytes that wait in memory to be written."""
        self.frames = WorkQueue("frame", waiting // _TO_FRAME, FRAMERS)
        """Queue of the threads that frame large records, that is convert them to the format's bytes. These bytes then
        wait in ``writes``, or are written by the framing thread itself."""
        self.writes = WorkQueue("write", waiting - waiting // _TO_FRAME, WRITERS)
        # SHA-256 of a file is computed in order: one thread may wait for another
        self.following = ThreadPoolExecutor(2 * (_SHARDS + 1), "following")
        """Threads for work after the writes: checksums, and flushing to the disk."""
        self.publishing = WorkQueue("publish", _SHARDS)

    def check(self) -> None:
        """Check that no background work has failed. Raises the first failure."""
        self.frames.check()
        self.writes.check()
        self.publishing.check()

    def stop(self, error: BaseException) -> None:
        """Publish the complete shards, drop all other work that waits, and end the threads. ``error`` is the reason."""
        self.frames.drain()
        self.publishing.drain()
        self.writes.fail(error)
        self.frames.close()
        self.publishing.close()
        self.writes.close()
        self.following.shutdown(cancel_futures=True)
