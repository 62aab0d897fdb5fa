"""Compiled loop that plans where each image is stored before and after each step on a GPU: one call per batch."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba

SOURCE, TARGET, FROM, TO, ROWS, COLUMNS, CHANNELS, STEP = range(8)
"""Columns of a job, which is one step of one image: offset of the image in the memory that is read, and in the memory
that is written; which memory each is (0 the input, 1 and 2 intermediate buffers, 3 the output); rows, columns and
channels; kind and parameters of the step. cuda/augment.cu has the same columns."""
_KIND = 1 << 32
"""Factor by which a step's kind is multiplied in column STEP. The remainder is the row of its parameters."""


@numba.njit(nogil=True, cache=True)
def jobs(base, geometry, kinds, out_base, first_statistic, last_statistic, todo, counts):
    """Fill ``todo`` [K, M, 8] with the jobs of each of K steps (a job is one step of one image). Jobs that need a
    histogram come first; ``counts`` [K, 2] receives the number of all jobs of a step, and of those with a histogram."""
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
        # jobs without histograms were stored at the end: close the gap
        count = front + todo.shape[1] - back
        for j in range(todo.shape[1] - back):
            todo[k, front + j] = todo[k, back + j]
        counts[k, 0], counts[k, 1] = count, front
