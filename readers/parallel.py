"""Work on the bytes of one batch by several threads."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from ..ops.context import Context

_PART = 4 << 20  # bytes of work that are worth a task
_MOST = 16


def spread(ctx: Context, n: int, nbytes: int, work: Callable[[int, int], object]) -> None:
    """``work(low, high)`` for all of range(n), in parts, by the calling thread and by whoever is idle in the pool.

    Parts may run at once and in any order. The caller does not wait for a busy pool: what nobody has begun, it does.
    """
    parts = min(n, nbytes // _PART)
    if ctx.pool is None or parts < 2:
        work(0, n)
        return
    todo = deque((n * k // parts, n * (k + 1) // parts) for k in range(parts))

    def help_out() -> None:
        while True:
            try:
                low, high = todo.popleft()
            except IndexError:
                return
            work(low, high)

    helpers = []
    with contextlib.suppress(RuntimeError):  # a pool that is shutting down gives no help
        for _ in range(min(parts - 1, _MOST)):
            helpers.append(ctx.pool.submit(help_out))
    help_out()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
