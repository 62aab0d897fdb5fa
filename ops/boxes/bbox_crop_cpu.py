"""Compiled search for crops of random_bbox_crop and ssd_random_crop. All arithmetic is float32, as in DALI, unless
stated otherwise."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from .bbox_simd_cpu import TOGETHER, VOLUME, covered
from .draws_cpu import below, between, fill, real, scaled, skip_to

F = np.float32
# Boxes and windows may have no area: dividing by it yields NaN, for which every comparison is false.
jit = numba.njit(nogil=True, cache=True, error_model="numpy")
inline = numba.njit(error_model="numpy")


@inline
def _shared(low, high, box_low, box_high):
    """Return the volume of the intersection of a window with a box."""
    v = F(1)
    for d in range(3):
        a, b = max(low[d], box_low[d]), min(high[d], box_high[d])
        if b <= a:
            return F(0)
        v = F(v * F(b - a))
    return v


@inline
def _stays(low, high, box_low, box_high, volume, prune):
    """Whether a box remains in the crop, the window from ``low`` to ``high``. Its centre must lie inside. If ``prune``
    is not negative, instead at least this fraction of its volume must."""
    if prune >= F(0):
        both = _shared(low, high, box_low, box_high)
        return both > F(0) and both >= F(prune * volume)
    for d in range(3):
        centre = F(F(box_low[d] + box_high[d]) * F(0.5))
        if not low[d] <= centre <= high[d]:
            return False
    return True


@inline
def _shuffled(key, sequence, state, order):
    """Return the axes 0 ... D-1 in the random order that std::shuffle produces; D is 2 or 3."""
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
    """Adjust a window's lengths to ratios that are fixed (smallest equal to largest). The largest length is kept."""
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
                # ``ratio`` is that of the first axis to the second
                factor = ratios[pair, 0] if b < a else F(F(1) / ratios[pair, 0])
                shape[b] = F(shape[a] * factor)
    now = F(0)
    for d in range(D):
        now = max(now, shape[d])
    for d in range(D):
        shape[d] = F(F(most * shape[d]) / now)


@inline
def _proportionate(extents, axes, first, second, third):
    """Whether all ratios of a window's lengths are allowed: first axis to second, first to third, second to third."""
    x, y, z = extents
    if not first[0] <= F(x / y) <= first[1]:
        return False
    return axes == 2 or (second[0] <= F(x / z) <= second[1] and third[0] <= F(y / z) <= third[1])


_AHEAD = 64
"""Number of random numbers that are generated at once: generating a single one would take as long as its window."""


@jit
def crops(
    key, sequences, boxes, first, counts, low_at, high_at, sized, thresholds, no_crop, ratios, scaling, attempts, total,
    most, overlap, all_boxes, prune, crop_shapes, input_shapes, anchors, shapes, out_boxes, kept, out_counts, exhausted,
):  # fmt: skip
    """Draw one random crop for every sample. Return the total number of boxes that remain in the crops.

    Boxes of sample i are ``counts[i]`` rows from element ``first[i]`` of ``boxes`` on; start and end (or, if ``sized``,
    length) of axis d are in columns ``low_at[d]`` and ``high_at[d]``. ``crop_shapes`` and ``input_shapes`` [N or 0, D]
    are empty if they are not set. At most ``total`` attempts are made, or ``most`` if ``total`` is negative. Remaining
    boxes are packed into ``out_boxes``, their old indices into ``kept``.
    """
    N, D = anchors.shape
    state, copy = np.zeros(5, np.uint64), np.zeros(5, np.uint64)
    words = np.empty(_AHEAD, np.uint32)
    order, metrics = np.zeros(D, np.int64), np.empty(TOGETHER, F)
    # With two axes, windows and boxes cover the third one completely, which changes no product.
    shape, pixels, lo, hi = np.ones(3, F), np.ones(3, F), np.zeros(3, F), np.ones(3, F)
    any_fixed = False
    for p in range(len(ratios)):
        any_fixed = any_fixed or ratios[p, 0] == ratios[p, 1]
    of_pairs = ratios[0, 0], ratios[0, 1]
    first_ratio = second_ratio = third_ratio = of_pairs
    if len(ratios) > 2:
        second_ratio, third_ratio = (ratios[1, 0], ratios[1, 1]), (ratios[2, 0], ratios[2, 1])
    low, span = scaling[0], F(scaling[1] - scaling[0])
    options = len(thresholds) + no_crop
    room = TOGETHER
    for i in range(N):
        room = max(room, -(-counts[i] // TOGETHER) * TOGETHER)
    box = np.zeros((VOLUME + 1, room), F)
    box[5], box[VOLUME] = F(1), F(1)
    n_out = 0
    for i in range(N):
        n, sequence = counts[i], sequences[i]
        for k in range(n):
            volume = F(1)
            for d in range(D):
                box[d, k] = boxes[first[i] + k * 2 * D + low_at[d]]
                v = boxes[first[i] + k * 2 * D + high_at[d]]
                box[3 + d, k] = F(box[d, k] + v) if sized else v
                volume = F(volume * F(box[3 + d, k] - box[d, k]))
            box[VOLUME, k] = volume
        state[0] = 0
        ahead = np.int64(-_AHEAD)  # index of the first of the draws in `words`
        best, found, success, count, whole = F(-1), False, False, 0, False
        best_lo, best_hi = (F(0), F(0), F(0)), (F(1), F(1), F(1))
        limit = total if total >= 0 else most
        while not success and count < limit:
            option = below(key, sequence, state, options)
            if option == len(thresholds):
                whole = True
                break
            threshold, at = thresholds[option], np.int64(state[0])
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
                    if at + 2 * D > ahead + _AHEAD:
                        ahead = at
                        fill(key, sequence, at, words)
                    for d in range(D):
                        shape[d] = scaled(words[at - ahead + d], low, span)
                    at += D
                    for d in range(D):
                        pixels[d] = F(shape[d] * F(input_shapes[i, d])) if len(input_shapes) else shape[d]
                    if any_fixed:
                        skip_to(key, sequence, copy, at)  # draws come from `words`, not from the stream's own state
                        _shuffled(key, sequence, copy, order)
                        _fixed(pixels[:D], ratios, order)
                        for d in range(D):
                            shape[d] = F(pixels[d] / F(input_shapes[i, d])) if len(input_shapes) else pixels[d]
                    extents = pixels[0], pixels[1], pixels[2]
                    if not _proportionate(extents, D, first_ratio, second_ratio, third_ratio):
                        continue
                    # a fixed ratio of pixels may have made the window larger than the image
                    if not (shape[0] <= F(1) and shape[1] <= F(1) and shape[2] <= F(1)):
                        continue
                    for d in range(D):
                        lo[d] = scaled(words[at - ahead + d], F(0), F(F(1) - shape[d]))
                        hi[d] = F(lo[d] + shape[d])
                        shape[d] = lo[d]
                    at += D
                window_lo, window_hi = (lo[0], lo[1], lo[2]), (hi[0], hi[1], hi[2])
                volume = F(F(F(hi[0] - lo[0]) * F(hi[1] - lo[1])) * F(hi[2] - lo[2]))
                metric = F(0)
                worse: Any = False
                for begin in range(0, n, TOGETHER):
                    set_ = covered(box, begin, window_lo, window_hi, volume, overlap, best, threshold, metrics)
                    if begin == 0:
                        metric = metrics[0]
                    # If the value is NaN for the first box, no other box counts; else other boxes can only decrease it.
                    worse = all_boxes and metric == metric and set_ & ((1 << min(TOGETHER, n - begin)) - 1) != 0
                    if worse:
                        break
                    for k in range(min(TOGETHER, n - begin)):
                        m = metrics[k]
                        metric = min(metric, m) if all_boxes else max(metric, m)
                if worse:
                    continue
                ok = n == 0 or metric >= threshold
                if metric <= best and not ok:
                    continue
                left = 0
                for k in range(n):
                    box_lo, box_hi = (box[0, k], box[1, k], box[2, k]), (box[3, k], box[4, k], box[5, k])
                    left += _stays(window_lo, window_hi, box_lo, box_hi, box[VOLUME, k], prune)
                best, found = metric, True
                best_lo, best_hi = window_lo, window_hi
                for d in range(D):
                    anchors[i, d] = shape[d]
                success = ok and (left > 0 or n == 0)
            if not len(crop_shapes):
                skip_to(key, sequence, state, at)
        exhausted[i] = not success and not whole
        if whole or not found:
            for d in range(D):
                anchors[i, d], shapes[i, d] = 0, 1
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
            box_lo, box_hi = (box[0, k], box[1, k], box[2, k]), (box[3, k], box[4, k], box[5, k])
            if not whole and not _stays(best_lo, best_hi, box_lo, box_hi, box[VOLUME, k], prune):
                continue
            for d in range(D):
                a, b = box_lo[d], box_hi[d]
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
    """Draw the crops of ssd_random_crop: ``windows`` int64[N, 4] (y, x, h, w) of images of ``extents`` [N, 2] (h, w).
    Return the total number of boxes that remain, as `crops` does; the crop is kept in float64, as in DALI."""
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
