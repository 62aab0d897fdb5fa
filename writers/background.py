"""Work beside the thread that delivers batches: large writes, their checksums, and the publishing of whole shards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_WRITES = 96 << 20
"""Bytes that wait to be written."""
_SHARDS = 3
"""Shards that wait to be published. SHA-256 takes one thread a file and is slower than most disks (1.7 GB/s), so
that the next shards are written while the last ones are still hashed."""


class Line:
    """Work done in order by one thread, a bounded amount behind. After the first failure nothing more is done."""

    def __init__(self, name: str, limit: int) -> None:
        self._limit = limit
        self._pool = ThreadPoolExecutor(1, name)
        self._changed = threading.Condition()
        self._waiting = 0
        self._error: BaseException | None = None

    def put(self, work: Callable[[], object], weight: int = 1) -> Future[None]:
        """Do ``work`` after all that was put before; waits for room. Raises what earlier work failed with."""
        weight = max(weight, 1)
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or not self._waiting or self._waiting + weight <= self._limit
            )
            if self._error is not None:
                raise self._error
            self._waiting += weight
        return self._pool.submit(self._run, work, weight)

    def _run(self, work: Callable[[], object], weight: int) -> None:
        try:
            self.check()
            work()
        except BaseException as e:
            self.fail(e)
            raise
        finally:
            with self._changed:
                self._waiting -= weight
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing that still waits is done."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raises what earlier work failed with."""
        if self._error is not None:
            raise self._error

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is being done."""
        return self._waiting == 0

    def settle(self) -> None:
        """Wait until everything that was put is done, or has failed."""
        with contextlib.suppress(RuntimeError):  # closed: everything is
            self._pool.submit(lambda: None).result()

    def wait(self) -> None:
        """Wait until everything is done. Raises what some of it failed with."""
        self.settle()
        self.check()

    def close(self) -> None:
        """End the thread, once everything is done or has failed."""
        self._pool.shutdown()


class Workers:
    """The threads of one output; each is started when there is something for it to do."""

    def __init__(self) -> None:
        self.writes = Line("write", _WRITES)
        self.checksums = ThreadPoolExecutor(_SHARDS + 1, "checksums")
        self.publishing = Line("publish", _SHARDS)

    def check(self) -> None:
        """Raises what failed in the background."""
        self.writes.check()
        self.publishing.check()

    def stop(self, error: BaseException) -> None:
        """Let shards that are complete be published; drop what else waits, and end the threads."""
        self.publishing.settle()
        self.writes.fail(error)
        self.publishing.close()
        self.writes.close()
        self.checksums.shutdown(cancel_futures=True)
