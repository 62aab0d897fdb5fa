"""Which image is where before and after each step on a GPU, worked out for a batch in one call."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba

SOURCE, TARGET, FROM, TO, ROWS, COLUMNS, CHANNELS, STEP = range(8)
"""Columns of a job: where it begins in the memory before and after, which that is (0 the input, 1 and 2 between, 3 the
output), the size of the picture, and the place of its kind and parameters. cuda/augment.cu says the same."""
_KIND = 1 << 32
"""A job's STEP is its kind times this, plus the row of its parameters."""


@numba.njit(nogil=True, cache=True)
def jobs(base, geometry, kinds, out_base, first_statistic, last_statistic, todo, counts):
    """``todo`` [K, M, 8] and ``counts`` [K, 2]: the jobs of each step, those with histograms first, and how many."""
    steps = kinds.shape[1]
    for k in range(max(steps, 1)):
        front, back = 0, todo.shape[1]
        for i in range(len(base)):
            frames, rows, columns, channels = geometry[i]
            kind = kinds[i, k] if k < steps else 0
            if kind == 0 and k > 0:
                continue
            last = k + 1 >= steps or kinds[i, k + 1] == 0
            size = rows * columns * channels
            for frame in range(frames):
                if first_statistic <= kind <= last_statistic:
                    at = front
                    front += 1
                else:
                    back -= 1
                    at = back
                place, origin = out_base[i] + frame * size, base[i] + frame * size
                job = todo[k, at]
                job[SOURCE], job[FROM] = (origin, 0) if k == 0 else (place, 1 + (k - 1) % 2)
                job[TARGET], job[TO] = place, 3 if last else 1 + k % 2
                job[ROWS], job[COLUMNS], job[CHANNELS] = rows, columns, channels
                job[STEP] = kind * _KIND + i * steps + k
        # those without histograms stand at the end: close the gap
        count = front + todo.shape[1] - back
        for j in range(todo.shape[1] - back):
            todo[k, front + j] = todo[k, back + j]
        counts[k, 0], counts[k, 1] = count, front
