"""Pixel masks from COCO's segmentations, which are polygons or run lengths. `readers.coco` calls this module.

A polygon covers the pixels that the COCO tools give it: its outline is drawn on a grid five times as fine, and a
pixel's column starts or ends at the outline's crossing of the column's middle (the algorithm of rleFrPoly in maskApi.c,
restated for arrays).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

_FINE = 5
MAX_OUTLINE = 1 << 24
"""Largest number of points of a polygon's outline on the grid on which it is drawn, which is finer than the pixels; no
image needs more."""


def polygon_mask(xy: list[float], height: int, width: int) -> Mask:
    """Mask of the pixels inside the polygon x, y, x, y, ...: bool[height, width]. Raises ValueError if the polygon is
    huge."""
    exact = np.array(xy, np.float32).astype(np.float64)  # float32, like the vertices of the output
    corners = np.trunc(_FINE * exact.reshape(-1, 2) + 0.5)
    if not (np.abs(corners) < MAX_OUTLINE).all():
        raise ValueError("a polygon reaches far outside of its image")
    points = _outline(corners.astype(np.int64))
    u, v = points[1:, 0], points[1:, 1]
    before_u, before_v = points[:-1, 0], points[:-1, 1]
    # steps of the outline from one fine column to the next
    x = (np.where(u < before_u, u, u - 1) + 0.5) / _FINE - 0.5
    crossing = (u != before_u) & (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    y = np.ceil(np.clip((np.minimum(v, before_v) + 0.5) / _FINE - 0.5, 0, height))
    toggles = np.bincount((x * height + y)[crossing].astype(np.int64), minlength=height * width + 1)
    inside = np.cumsum(toggles[: height * width]) & 1
    return inside.astype(np.bool_).reshape(width, height).T


def _outline(corners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the points on the edges of a polygon with these ``corners``, one edge after the other. Coordinates are
    those of a grid finer than the pixels."""
    first, last = corners, np.roll(corners, -1, axis=0)
    d = np.abs(last - first)
    flat = d[:, 0] >= d[:, 1]
    # walk the longer axis of each edge upwards, whichever direction the edge has
    turned = np.where(flat, first[:, 0] > last[:, 0], first[:, 1] > last[:, 1])
    low = np.where(turned[:, None], last, first)
    high = np.where(turned[:, None], first, last)
    steps = d.max(axis=1)
    if int(steps.sum()) > MAX_OUTLINE:
        raise ValueError("a polygon's outline is longer than any image needs")
    edge = np.repeat(np.arange(len(corners)), steps + 1)
    t = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    t = np.where(turned[edge], steps[edge] - t, t)
    short, long = np.where(flat, 1, 0), np.where(flat, 0, 1)
    rows = np.arange(len(corners))
    slope = (high[rows, short] - low[rows, short]) / np.maximum(steps, 1)
    points = np.empty((len(edge), 2), np.int64)
    every = np.arange(len(edge))
    points[every, long[edge]] = low[rows, long][edge] + t
    points[every, short[edge]] = (low[rows, short][edge] + slope[edge] * t + 0.5).astype(np.int64)
    return points


def runs_of(counts: Any) -> list[int]:
    """Parse the run lengths of a COCO mask, a list or COCO's text encoding. Raises ValueError if they are malformed."""
    if isinstance(counts, list) and all(isinstance(c, int) and 0 <= c < 2**31 for c in counts):
        return counts
    if not isinstance(counts, str) or not all(48 <= ord(c) < 112 for c in counts):
        raise ValueError("counts must be a list of run lengths, or COCO's text of them")
    # five bits per character, the lowest first; bit 5: more characters follow; bit 4 of the last one: the sign; from
    # the fourth run on, the difference to the run before the last
    runs: list[int] = []
    value = shift = 0
    for character in counts:
        bits = ord(character) - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            if shift > 35:
                raise ValueError("a run length of counts is too large")
            continue
        if bits & 16:
            value -= 1 << shift
        run = value + runs[-2] if len(runs) > 2 else value
        if not 0 <= run < 2**31:
            raise ValueError("a run length of counts is negative or too large")
        runs.append(run)
        value = shift = 0
    if shift:
        raise ValueError("counts end inside a run length")
    return runs


def runs_mask(runs: list[int], height: int, width: int) -> Mask:
    """Mask of an object from its run lengths: bool[height, width]. Runs are alternately outside and inside of the
    object, down the columns."""
    ends = np.minimum(np.cumsum(np.array(runs, np.int64)), height * width)
    toggles = np.bincount(ends, minlength=height * width + 1)
    inside = np.cumsum(toggles[: height * width]) & 1
    return inside.astype(np.bool_).reshape(width, height).T
