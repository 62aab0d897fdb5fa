"""Work beside the thread that delivers batches: large records are framed and written, files are summed, and whole
shards are published."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ...ops.errors import kept

WAITING = (128 << 20, 1 << 30)
"""Bytes that may wait to be written: at least, and at most."""
_OF_BUDGET = 32
"""The part of the host's memory budget that they may be between these. Bytes come in order, so that several files are
written at the same time only where more waits than one shard has: of 260 MB, where a file takes 2.5 GB/s, they get 4.0
GB/s with 128 MiB, 9.4 with 512 MiB."""
WRITERS = 4
"""Files that are written at the same time. The system lets one thread at a time write to a file, which takes it 2 to 3
GB/s in memory; where records come faster, the next shard begins while the last one is still written."""
FRAMERS = 3
"""Shards whose records are framed, and summed, at the same time, where those are large. One thread takes all three
checksums of TFRecord's bytes at 3.5 GB/s, and waits for the GIL after each of its calls."""
_TO_FRAME = 3
"""The part of the bytes that may wait to be written which may still wait to be framed."""
_SHARDS = 3
"""Shards that wait to be published: the next ones are written while the last ones go to the disk."""


class Line:
    """Work done in order by one thread, or by one for each of some lanes, with a bounded amount waiting in all. After a
    failure nothing more is done for whom it was, and nothing more is taken; work for others goes on, in the same lane,
    too, until `check` has told of it."""

    def __init__(self, name: str, limit: int, lanes: int = 1) -> None:
        self._limit = limit
        self._pools = [ThreadPoolExecutor(1, name) for _ in range(lanes)]
        self._changed = threading.Condition()
        self._waiting = [0] * lanes
        self._error: BaseException | None = None
        """The first failure."""
        self._failed: set[object] = set()
        """Owners of work that failed."""
        self._ended = False
        """Nothing more is done for anybody."""

    def shortest(self) -> int:
        """The lane with the least to do."""
        return self._waiting.index(min(self._waiting))

    def put(
        self, work: Callable[[], object], weight: int = 1, lane: int = 0, owner: object | None = None
    ) -> Future[None]:
        """Do ``work`` after all that was put on its lane before; waits for room. ``owner``: whom it is for (a file, a
        shard), the lane's only one by default. Raises the first failure of all where earlier work for it failed."""
        weight, owner = max(weight, 1), lane if owner is None else owner
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over(owner) or self.idle or sum(self._waiting) + weight <= self._limit
            )
            if self._is_over(owner):
                self.check()
            self._waiting[lane] += weight
        return self._pools[lane].submit(self._run, work, weight, lane, owner)

    def _is_over(self, owner: object) -> bool:
        return self._ended or owner in self._failed

    def _run(self, work: Callable[[], object], weight: int, lane: int, owner: object) -> None:
        try:
            if self._is_over(owner):
                self.check()
            work()
        except BaseException as e:
            with self._changed:
                self._error = self._error or kept(e)
                self._failed.add(owner)
            raise
        finally:
            with self._changed:
                self._waiting[lane] -= weight
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing that still waits is done."""
        with self._changed:
            self._error = self._error or error
            self._ended = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raises what earlier work failed with."""
        if self._error is not None:
            raise self._error

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is being done."""
        return not any(self._waiting)

    def settle(self) -> None:
        """Wait until everything that was put is done, or has failed."""
        with contextlib.suppress(RuntimeError):  # closed: everything is
            for last in [pool.submit(lambda: None) for pool in self._pools]:
                last.result()

    def wait(self) -> None:
        """Wait until everything is done. Raises what some of it failed with."""
        self.settle()
        self.check()

    def close(self) -> None:
        """End the threads, once everything is done or has failed."""
        for pool in self._pools:
            pool.shutdown()


def waiting_for(budget: int) -> int:
    """Bytes that may wait to be written in a run with ``budget`` bytes of the host's memory."""
    least, most = WAITING
    return max(least, min(most, budget // _OF_BUDGET))


class Workers:
    """The threads of one output; each is started when there is something for it to do."""

    def __init__(self, waiting: int = WAITING[0]) -> None:
        """``waiting``: bytes that may wait to be written."""
        self.frames = Line("frame", waiting // _TO_FRAME, FRAMERS)
        """Large records become bytes here, which then wait in ``writes``, or are written by this thread."""
        self.writes = Line("write", waiting - waiting // _TO_FRAME, WRITERS)
        # SHA-256 of a file goes on in order: one thread may wait for another
        self.following = ThreadPoolExecutor(2 * (_SHARDS + 1), "following")
        """Work on files beside their writing: checksums, and the disk."""
        self.publishing = Line("publish", _SHARDS)

    def check(self) -> None:
        """Raises what failed in the background."""
        self.frames.check()
        self.writes.check()
        self.publishing.check()

    def stop(self, error: BaseException) -> None:
        """Let shards that are complete be published; drop what else waits, and end the threads."""
        self.frames.settle()
        self.publishing.settle()
        self.writes.fail(error)
        self.frames.close()
        self.publishing.close()
        self.writes.close()
        self.following.shutdown(cancel_futures=True)
