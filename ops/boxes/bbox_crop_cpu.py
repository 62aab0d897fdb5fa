"""The search for crops of random_bbox_crop and ssd_random_crop. All arithmetic is float32, as in DALI, unless said."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from .draws_cpu import below, between, real

F = np.float32
# Boxes and windows may have no area: a division by it is no number, which no comparison holds for.
jit = numba.njit(nogil=True, cache=True, error_model="numpy")
inline = numba.njit(error_model="numpy")


@inline
def _volume(lo, hi):
    v = F(hi[0] - lo[0])
    for d in range(1, len(lo)):
        v = F(v * F(hi[d] - lo[d]))
    return v


@inline
def _shared(lo, hi, box_lo, box_hi, k):
    """Volume of the intersection of a window with box ``k``: rows of arrays would be counted references."""
    v = F(1)
    for d in range(len(lo)):
        a, b = max(lo[d], box_lo[d, k]), min(hi[d], box_hi[d, k])
        if b <= a:
            return F(0)
        v = F(b - a) if d == 0 else F(v * F(b - a))
    return v


_TOGETHER = 32
"""Boxes that `_metrics` looks at together: it works on vectors, and has none for a rest."""


@inline
def _metrics(lo, hi, volume, box_lo, box_hi, volumes, overlap, first, out):
    """How much a window covers of each of the boxes from ``first`` on, or their intersection over union. No processor
    foresees which boxes a random window touches, so that nothing branches."""
    for d in range(len(lo)):
        for j in range(_TOGETHER):
            k, at = np.uint64(first + j), np.uint64(j)
            a, b = max(lo[d], box_lo[d, k]), min(hi[d], box_hi[d, k])
            extent = F(b - a) if b > a else F(0)
            out[at] = extent if d == 0 else F(out[at] * extent)
    for j in range(_TOGETHER):
        k, at = np.uint64(first + j), np.uint64(j)
        out[at] = F(out[at] / (volumes[k] if overlap else F(F(volume + volumes[k]) - out[at])))


@inline
def _stays(lo, hi, box_lo, box_hi, volumes, k, prune):
    """Does box ``k`` stay in the crop: by its centre, or by the part of it that is inside?"""
    if prune >= F(0):
        both = _shared(lo, hi, box_lo, box_hi, k)
        return both > F(0) and both >= F(prune * volumes[k])
    for d in range(len(lo)):
        centre = F(F(box_lo[d, k] + box_hi[d, k]) * F(0.5))
        if not lo[d] <= centre <= hi[d]:
            return False
    return True


@inline
def _shuffled(key, sequence, state, order):
    """0 ... D-1 in the order that std::shuffle gives; D is 2 or 3."""
    D = len(order)
    for d in range(D):
        order[d] = d
    if D == 2:
        j = below(key, sequence, state, 2)
        order[1], order[j] = order[j], order[1]
    else:
        both = below(key, sequence, state, 6)
        j = both // 3
        order[1], order[j] = order[j], order[1]
        j = both % 3
        order[2], order[j] = order[j], order[2]


@inline
def _fixed(shape, ratios, order):
    """Make extents whose ratio is fixed equal to it; the largest extent stays."""
    D, P = len(shape), len(ratios)
    most = F(0)
    for d in range(D):
        most = max(most, shape[d])
    for i in range(D):
        for j in range(i + 1, D):
            a, b = order[i], order[j]
            first, second = min(a, b), max(a, b)
            pair = (first + second - 1) % P  # (0, 1), (0, 2), (1, 2)
            if ratios[pair, 0] == ratios[pair, 1]:
                # the ratio is that of the first axis to the second
                factor = ratios[pair, 0] if b < a else F(F(1) / ratios[pair, 0])
                shape[b] = F(shape[a] * factor)
    now = F(0)
    for d in range(D):
        now = max(now, shape[d])
    for d in range(D):
        shape[d] = F(F(most * shape[d]) / now)


@inline
def _proportionate(shape, ratios):
    """Are all ratios of extents in their ranges?"""
    D, P = len(shape), len(ratios)
    for a in range(D):
        for b in range(a + 1, D):
            pair = (a + b - 1) % P
            ratio = F(shape[a] / shape[b])
            if not ratios[pair, 0] <= ratio <= ratios[pair, 1]:
                return False
    return True


@inline
def _fits(shape):
    return shape.max() <= F(1)  # a fixed ratio of pixels may have made it larger than the image


@jit
def crops(
    key, sequences, boxes, first, counts, low_at, high_at, sized, thresholds, no_crop, ratios, scaling, attempts, total,
    most, overlap, all_boxes, prune, crop_shapes, input_shapes, anchors, shapes, out_boxes, kept, out_counts, exhausted,
):  # fmt: skip
    """One crop for every sample. Returns how many boxes are left in all.

    Boxes of sample i are ``counts[i]`` rows from element ``first[i]`` of ``boxes`` on; start and end (or, if ``sized``,
    extent) of axis d stand in columns ``low_at[d]`` and ``high_at[d]``. ``crop_shapes`` and ``input_shapes``
    [N or 0, D] are empty where they are not given. ``total`` attempts are made at most, ``most`` if that is negative.
    Boxes that are left are packed into ``out_boxes``, their old numbers into ``kept``.
    """
    N, D = anchors.shape
    state, copy = np.zeros(5, np.uint64), np.zeros(5, np.uint64)
    order, metrics = np.zeros(D, np.int64), np.empty(_TOGETHER, F)
    shape, pixels, lo, hi = np.zeros(D, F), np.zeros(D, F), np.zeros(D, F), np.zeros(D, F)
    best_lo, best_hi = np.zeros(D, F), np.zeros(D, F)
    any_fixed = False
    for p in range(len(ratios)):
        any_fixed = any_fixed or ratios[p, 0] == ratios[p, 1]
    options = len(thresholds) + no_crop
    n_out = 0
    for i in range(N):
        n, sequence = counts[i], sequences[i]
        room = -(-n // _TOGETHER) * _TOGETHER
        box_lo, box_hi, volumes = np.ones((D, room), F), np.ones((D, room), F), np.ones(room, F)
        for k in range(n):
            for d in range(D):
                box_lo[d, k] = boxes[first[i] + k * 2 * D + low_at[d]]
                v = boxes[first[i] + k * 2 * D + high_at[d]]
                box_hi[d, k] = F(box_lo[d, k] + v) if sized else v
                extent = F(box_hi[d, k] - box_lo[d, k])
                volumes[k] = extent if d == 0 else F(volumes[k] * extent)
        state[0] = 0
        best, found, success, count, whole = F(-1), False, False, 0, False
        limit = total if total >= 0 else most
        while not success and count < limit:
            option = below(key, sequence, state, options)
            if option == len(thresholds):
                whole = True
                break
            for _ in range(attempts):
                count += 1
                if len(crop_shapes):
                    for d in range(D):
                        rest = input_shapes[i, d] - crop_shapes[i, d]
                        anchor = F(0)
                        if rest != 0:
                            anchor = F(between(key, sequence, state, min(rest, 0), max(rest, 0)))
                        lo[d] = F(anchor / F(input_shapes[i, d]))
                        hi[d] = F(F(F(crop_shapes[i, d]) / F(input_shapes[i, d])) + lo[d])
                        shape[d] = anchor
                else:
                    for d in range(D):
                        shape[d] = real(key, sequence, state, scaling[0], scaling[1])
                    for d in range(D):
                        pixels[d] = F(shape[d] * F(input_shapes[i, d])) if len(input_shapes) else shape[d]
                    if any_fixed:
                        copy[:] = state  # nothing is drawn from the stream itself
                        _shuffled(key, sequence, copy, order)
                        _fixed(pixels, ratios, order)
                        for d in range(D):
                            shape[d] = F(pixels[d] / F(input_shapes[i, d])) if len(input_shapes) else pixels[d]
                    if not _proportionate(pixels, ratios) or not _fits(shape):
                        continue
                    for d in range(D):
                        lo[d] = real(key, sequence, state, F(0), F(F(1) - shape[d]))
                        hi[d] = F(lo[d] + shape[d])
                        shape[d] = lo[d]
                metric = F(0)
                volume = _volume(lo, hi)
                worse: Any = False
                for begin in range(0, n, _TOGETHER):
                    _metrics(lo, hi, volume, box_lo, box_hi, volumes, overlap, begin, metrics)
                    for k in range(begin, min(begin + _TOGETHER, n)):
                        m = metrics[k - begin]
                        metric = m if k == 0 else min(metric, m) if all_boxes else max(metric, m)
                    worse = all_boxes and metric <= best and metric < thresholds[option]
                    if worse:  # and other boxes only make it smaller
                        break
                if worse:
                    continue
                ok = n == 0 or metric >= thresholds[option]
                if metric <= best and not ok:
                    continue
                left = 0
                for k in range(n):
                    left += _stays(lo, hi, box_lo, box_hi, volumes, k, prune)
                best, found = metric, True
                best_lo[:], best_hi[:] = lo, hi
                for d in range(D):
                    anchors[i, d] = shape[d]
                success = ok and (left > 0 or n == 0)
        exhausted[i] = not success and not whole
        if whole or not found:
            for d in range(D):
                anchors[i, d] = 0
                best_lo[d], best_hi[d], shapes[i, d] = 0, 1, 1
                if len(crop_shapes):
                    shapes[i, d] = input_shapes[i, d]
        else:
            for d in range(D):
                if len(crop_shapes):
                    shapes[i, d] = F(F(anchors[i, d] + F(crop_shapes[i, d])) - anchors[i, d])
                else:
                    shapes[i, d] = F(best_hi[d] - best_lo[d])
        start = n_out
        for k in range(n):
            if not whole and not _stays(best_lo, best_hi, box_lo, box_hi, volumes, k, prune):
                continue
            for d in range(D):
                a, b = box_lo[d, k], box_hi[d, k]
                if not whole:
                    extent = F(best_hi[d] - best_lo[d])
                    a = min(max(F(F(a - best_lo[d]) / extent), F(0)), F(1))
                    b = min(max(F(F(b - best_lo[d]) / extent), F(0)), F(1))
                out_boxes[n_out * 2 * D + low_at[d]] = a
                out_boxes[n_out * 2 * D + high_at[d]] = F(b - a) if sized else b
            kept[n_out] = k
            n_out += 1
        out_counts[i] = n_out - start
    return n_out


_SSD = np.array([-1, 0.1, 0.3, 0.5, 0.7, 0.9], np.float32)


@inline
def _llround(x):
    return np.int64(math.floor(x + 0.5))


@jit
def ssd_crops(key, sequences, boxes, first, counts, extents, attempts, most, windows, out_boxes, kept, out_counts):
    """ssd_random_crop's crops: ``windows`` int64[N, 4] (y, x, h, w) of images of ``extents`` [N, 2] (h, w). Returns how
    many boxes are left in all, see `crops`; the crop is kept in float64, as in DALI."""
    state = np.zeros(5, np.uint64)
    lo, hi = np.zeros(2, F), np.zeros(2, F)
    n_out = 0
    for i in range(len(counts)):
        n, sequence = counts[i], sequences[i]
        start = n_out
        H, W = extents[i, 0], extents[i, 1]
        state[0] = 0
        done = False
        count = 0
        while not done:
            option = below(key, sequence, state, 7)
            if option == 6 or count >= most or n == 0:
                break
            for _ in range(attempts):
                count += 1
                w = real(key, sequence, state, F(0.3), F(1))
                h = real(key, sequence, state, F(0.3), F(1))
                ratio = F(w / h)
                if ratio < F(0.5) or ratio > F(2):
                    continue
                left = np.float64(real(key, sequence, state, F(0), F(1.0 - np.float64(w))))
                top = np.float64(real(key, sequence, state, F(0), F(1.0 - np.float64(h))))
                right, bottom = left + np.float64(w), top + np.float64(h)
                lo[0], lo[1], hi[0], hi[1] = F(left), F(top), F(right), F(bottom)
                good = True
                for k in range(n):
                    b = first[i] + 4 * k
                    if _ssd_iou(boxes, b, lo, hi) < _SSD[option]:
                        good = False
                        break
                if not good:
                    continue
                n_out = start
                for k in range(n):
                    b = first[i] + 4 * k
                    x = 0.5 * np.float64(F(boxes[b] + boxes[b + 2]))
                    y = 0.5 * np.float64(F(boxes[b + 1] + boxes[b + 3]))
                    if not (left <= x <= right and top <= y <= bottom):
                        continue
                    for q in range(4):
                        at = left if q % 2 == 0 else top
                        extent = np.float64(w) if q % 2 == 0 else np.float64(h)
                        value = (np.float64(boxes[b + q]) - at) / extent
                        out_boxes[4 * n_out + q] = F(min(max(value, 0.0), 1.0))
                    kept[n_out] = k
                    n_out += 1
                if n_out == start:
                    continue
                y0, x0 = _llround(top * H), _llround(left * W)
                windows[i, 0], windows[i, 1] = y0, x0
                windows[i, 2], windows[i, 3] = _llround(bottom * H) - y0, _llround(right * W) - x0
                done = True
                break
        if not done:
            n_out = start
            windows[i, 0], windows[i, 1], windows[i, 2], windows[i, 3] = 0, 0, H, W
            for k in range(n):
                for q in range(4):
                    out_boxes[4 * n_out + q] = boxes[first[i] + 4 * k + q]
                kept[n_out] = k
                n_out += 1
        out_counts[i] = n_out - start
    return n_out


@inline
def _ssd_iou(boxes, b, lo, hi):
    left, top = max(boxes[b], lo[0]), max(boxes[b + 1], lo[1])
    right, bottom = min(boxes[b + 2], hi[0]), min(boxes[b + 3], hi[1])
    both = F(max(F(right - left), F(0)) * max(F(bottom - top), F(0)))
    one = F(F(boxes[b + 3] - boxes[b + 1]) * F(boxes[b + 2] - boxes[b]))
    other = F(F(hi[1] - lo[1]) * F(hi[0] - lo[0]))
    return F(both / F(F(one + other) - both))
