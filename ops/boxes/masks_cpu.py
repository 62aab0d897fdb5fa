"""Compiled loops for masks: random pixels, objects, polygons."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .draws_cpu import between, canonical

F = np.float32
jit = numba.njit(nogil=True, cache=True)
inline = numba.njit


@jit
def windows_around(key, sequences, crop, start, end, whole, refused, out):
    """Draw random starts of windows of size ``crop`` [N, D] that contain, or lie in, the regions from ``start`` to
    ``end``. They stay inside data of shape ``whole``, unless that is [0, D]."""
    state = np.zeros(5, np.uint64)
    for i in range(len(out)):
        state[0] = 0
        if refused[i]:
            continue
        for d in range(out.shape[1]):
            first, last = start[i, d], end[i, d] - crop[i, d]
            if last > first:  # the window lies inside the region
                if len(whole):
                    last = min(last, whole[i, d] - crop[i, d])
            elif last < first:  # the region lies inside the window
                first, last = last, first
                if len(whole):
                    first, last = max(first, 0), min(last, whole[i, d] - crop[i, d])
            else:
                out[i, d] = first
                continue
            out[i, d] = between(key, sequences[i], state, first, last)


@jit
def pixels(key, sequences, masks, first, shapes, foreground, exact, values, thresholds, out):
    """Draw a random pixel [N, D] of each mask. If ``foreground`` is set and possible, it is a pixel above a threshold
    or, if ``exact``, equal to a value."""
    D = shapes.shape[1]
    state = np.zeros(5, np.uint64)
    for i in range(len(out)):
        state[0] = 0
        size = 1
        for d in range(D):
            size *= shapes[i, d]
        if size == 0:
            out[i] = 0
            continue
        mask = masks[first[i] : first[i] + size]
        count = 0
        if foreground[i] != 0:
            for k in range(size):
                count += mask[k] == values[i] if exact else mask[k] > thresholds[i]
        if count == 0:
            for d in range(D):
                out[i, d] = between(key, sequences[i], state, 0, shapes[i, d] - 1)
            continue
        left = between(key, sequences[i], state, 0, count - 1)
        at = 0
        for k in range(size):
            if mask[k] == values[i] if exact else mask[k] > thresholds[i]:
                if left == 0:
                    at = k
                    break
                left -= 1
        for d in range(D - 1, -1, -1):
            out[i, d] = at % shapes[i, d]
            at //= shapes[i, d]


@inline
def _root(parent, k):
    while parent[k] != k:
        parent[k] = parent[parent[k]]
        k = parent[k]
    return k


@inline
def _blobs(mask, shape, of_class, wanted, background):
    """Find the connected regions of equal pixels in a mask: of class ``wanted``, or of all classes but the background.
    Pixels connect along the axes. Return the regions' boxes [B, 2, D], in the order of their first pixels."""
    D, size = len(shape), len(mask)
    stride = np.ones(D, np.int64)
    for d in range(D - 2, -1, -1):
        stride[d] = stride[d + 1] * shape[d + 1]
    parent = np.full(size, -1, np.int64)
    place = np.zeros(D, np.int64)
    for k in range(size):
        value = np.int64(mask[k])
        if value == wanted if of_class else value != background:
            parent[k] = k
            for d in range(D):
                if place[d] > 0 and mask[k - stride[d]] == mask[k]:
                    a, b = _root(parent, k - stride[d]), _root(parent, k)
                    if a < b:
                        parent[b] = a
                    elif b < a:
                        parent[a] = b
        for d in range(D - 1, -1, -1):
            place[d] += 1
            if place[d] < shape[d]:
                break
            place[d] = 0
    roots = 0
    for k in range(size):
        roots += parent[k] == k
    boxes = np.zeros((roots, 2, D), np.int64)
    number = np.zeros(size if roots else 0, np.int64)
    place[:] = 0
    found = 0
    for k in range(size):
        if parent[k] >= 0:
            root = _root(parent, k)
            if root == k:
                number[k] = found
                for d in range(D):
                    boxes[found, 0, d], boxes[found, 1, d] = place[d], place[d] + 1
                found += 1
            else:
                b = number[root]
                for d in range(D):
                    boxes[b, 0, d] = min(boxes[b, 0, d], place[d])
                    boxes[b, 1, d] = max(boxes[b, 1, d], place[d] + 1)
        for d in range(D - 1, -1, -1):
            place[d] += 1
            if place[d] < shape[d]:
                break
            place[d] = 0
    return boxes


@inline
def _picked(key, sequence, state, boxes, least, largest):
    """Return the index of a random box among those with lengths of at least ``least``, or among the ``largest`` of
    these unless that is 0. Return -1 if there is none."""
    D = boxes.shape[2]
    good = np.empty(len(boxes), np.int64)
    n = 0
    for b in range(len(boxes)):
        fits = True
        for d in range(D):
            fits = fits and boxes[b, 1, d] - boxes[b, 0, d] >= least[d]
        if fits:
            good[n] = b
            n += 1
    if n == 0:
        return -1
    if 0 < largest < n:
        volumes = np.empty(n, np.int64)
        for k in range(n):
            volumes[k] = -1
            for d in range(D):
                volumes[k] *= boxes[good[k], 1, d] - boxes[good[k], 0, d]
        order = np.argsort(volumes, kind="mergesort")
        return good[order[between(key, sequence, state, 0, largest - 1)]]
    return good[between(key, sequence, state, 0, n - 1)]


@inline
def _classes_in(mask, background):
    """Return the sorted classes in a mask, without the background."""
    found = np.empty(8, np.int64)
    n = 0
    last, known = np.int64(0), False
    for k in range(len(mask)):
        value = np.int64(mask[k])
        if value == background or (known and value == last):
            continue
        last, known = value, True
        at = np.searchsorted(found[:n], value)
        if at < n and found[at] == value:
            continue
        if n == len(found):
            found = np.concatenate((found, np.empty(n, np.int64)))
        for q in range(n, at, -1):
            found[q] = found[q - 1]
        found[at] = value
        n += 1
    return found[:n]


@jit
def objects(
    key, sequences, masks, first, shapes, chance, backgrounds, classes, class_at, class_counts, weights, weight_at,
    weight_counts, largest, least, any_class, skip, boxes, labels,
):  # fmt: skip
    """Draw a random object of each mask: fill in its box, or that of the whole mask, [N, 2, D], and its class (or the
    background)."""
    D = shapes.shape[1]
    state = np.zeros(5, np.uint64)
    for i in range(len(boxes)):
        state[0] = 0
        sequence, background = sequences[i], backgrounds[i]
        size = 1
        for d in range(D):
            size *= shapes[i, d]
            boxes[i, 0, d], boxes[i, 1, d] = 0, shapes[i, d]
        labels[i] = background
        if skip[i] or size == 0:
            continue
        mask = masks[first[i] : first[i] + size]
        if not canonical(key, sequence, state) < chance[i]:
            continue
        if any_class:
            blobs = _blobs(mask, shapes[i], False, 0, background)
            b = _picked(key, sequence, state, blobs, least[i], largest)
            if b >= 0:
                boxes[i] = blobs[b]
            continue
        present = _classes_in(mask, background)
        if class_counts[i] > 0:
            listed = classes[class_at[i] : class_at[i] + class_counts[i]]
        else:
            listed = present
        share = np.ones(len(listed), np.float64)
        for k in range(len(listed)):
            if weight_counts[i] > 0:
                share[k] = weights[weight_at[i] + k]
            at = np.searchsorted(present, listed[k])
            if at == len(present) or present[at] != listed[k]:
                share[k] = 0.0
        while True:
            total = 0.0
            ends = np.empty(len(listed), np.float64)
            for k in range(len(listed)):
                total += share[k]
                ends[k] = np.float64(F(total))
            if total <= 0:
                break
            where = canonical(key, sequence, state) * ends[-1]
            k = np.searchsorted(ends, where)
            while k < len(listed) and share[k] == 0:
                k += 1
            if k >= len(listed):
                break
            blobs = _blobs(mask, shapes[i], True, listed[k], background)
            b = _picked(key, sequence, state, blobs, least[i], largest)
            if b >= 0:
                boxes[i] = blobs[b]
                labels[i] = listed[k]
                break
            share[k] = 0.0


GOOD, UNKNOWN, TWICE, OUTSIDE = range(4)
"""Statuses of a sample of the operator select_masks: valid; a mask id that does not exist; one that occurs twice; a
polygon whose vertices do not exist."""


@jit
def selected(
    ids, id_at, id_counts, polygons, polygon_at, polygon_counts, vertex_counts, reindex, rows, row_counts, status
):
    """Select the polygons of the masks ``ids``, in that order: ``rows`` [T, 5] hold id, start and end in the output,
    start and end in the input; ``row_counts`` are their numbers per sample. Return the number of rows; ``status`` [N,
    2] holds the kind of error, and the id or polygon that caused it."""
    used = 0
    for i in range(len(id_counts)):
        begin = used
        vertex = 0
        for p in range(polygon_counts[i]):
            at = polygon_at[i] + 3 * p
            if not 0 <= polygons[at + 1] <= polygons[at + 2] <= vertex_counts[i]:
                status[i, 0], status[i, 1] = OUTSIDE, p
        for k in range(id_counts[i]):
            wanted = ids[id_at[i] + k]
            for q in range(k):
                if ids[id_at[i] + q] == wanted:
                    status[i, 0], status[i, 1] = TWICE, wanted
            found = False
            for p in range(polygon_counts[i]):
                at = polygon_at[i] + 3 * p
                if polygons[at] == wanted:
                    found = True
                    if status[i, 0] == GOOD:
                        length = polygons[at + 2] - polygons[at + 1]
                        rows[used, 0] = k if reindex else wanted
                        rows[used, 1], rows[used, 2] = vertex, vertex + length
                        rows[used, 3], rows[used, 4] = polygons[at + 1], polygons[at + 2]
                        vertex += length
                        used += 1
            if not found and status[i, 0] == GOOD:
                status[i, 0], status[i, 1] = UNKNOWN, wanted
        if status[i, 0] != GOOD:
            used = begin
        row_counts[i] = used - begin
    return used
