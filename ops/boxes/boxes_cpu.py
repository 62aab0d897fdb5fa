"""Compiled loops: flips, rotations and anchors of boxes. All arithmetic is float32, as in DALI."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np

F = np.float32
jit = numba.njit(nogil=True, cache=True)
inline = numba.njit


@jit
def flip(boxes, first, counts, horizontal, vertical, ltrb, out):
    """Mirror the ``counts[i]`` boxes of sample i, from element ``first[i]`` on, if its flag for an axis is set. Results
    are packed into ``out``."""
    at = 0
    for i in range(len(counts)):
        for k in range(first[i], first[i] + 4 * counts[i], 4):
            for axis in range(2):
                a, b = boxes[k + axis], boxes[k + 2 + axis]
                end = b if ltrb else F(a + b)
                if (vertical[i] if axis else horizontal[i]) != 0:
                    a, end = F(F(1) - end), F(F(1) - a)
                out[at + axis], out[at + 2 + axis] = a, end if ltrb else F(end - a)
            at += 4


FIXED, HALFWAY, EXPAND = range(3)
"""Modes of the operator bbox_rotate, which decide the size of rotated boxes."""


@jit
def rotate(
    boxes, first, counts, low_at, high_at, sized, normalized, angles, images, canvases, keep, mode, threshold, out,
    kept, out_counts,
):  # fmt: skip
    """Rotate boxes with their images by ``angles`` degrees. Return the total number of boxes that remain.

    ``images`` and ``canvases`` float32[N, 2] are (height, width) before and after; for a canvas of 0, the size is
    chosen as the operator rotate does. Remaining boxes are packed into ``out``, their old indices into ``kept``.
    """
    n_out = 0
    for i in range(len(counts)):
        start = n_out
        H, W = F(images[i, 0]), F(images[i, 1])
        angle = F(F(angles[i]) * F(math.pi / 180))
        c, s = F(math.cos(angle)), F(math.sin(angle))
        if canvases[i, 1] > 0:
            OH, OW = F(canvases[i, 0]), F(canvases[i, 1])
        elif keep:
            OH, OW = H, W
        else:
            ca, sa = abs(np.float64(c)), abs(np.float64(s))
            wide, high = math.ceil(ca * W + sa * H - 0.01), math.ceil(ca * H + sa * W - 0.01)
            like_w, like_h = (W, H) if sa <= ca else (H, W)
            OW, OH = F(wide + (wide % 2 != like_w % 2)), F(high + (high % 2 != like_h % 2))
        for k in range(counts[i]):
            b = first[i] + 4 * k
            x0, y0 = boxes[b + low_at[0]], boxes[b + low_at[1]]
            x1, y1 = boxes[b + high_at[0]], boxes[b + high_at[1]]
            if sized:
                x1, y1 = F(x0 + x1), F(y0 + y1)
            if normalized:
                x0, x1 = F(F(x0 - F(0.5)) * W), F(F(x1 - F(0.5)) * W)
                y0, y1 = F(F(y0 - F(0.5)) * H), F(F(y1 - F(0.5)) * H)
            else:
                x0, x1 = F(x0 - F(W / F(2))), F(x1 - F(W / F(2)))
                y0, y1 = F(y0 - F(H / F(2))), F(y1 - F(H / F(2)))
            left, top, right, bottom = F(np.inf), F(np.inf), F(-np.inf), F(-np.inf)
            for corner in range(4):
                x, y = x1 if corner % 2 else x0, y1 if corner // 2 else y0
                u, v = F(F(x * c) + F(y * s)), F(F(y * c) - F(x * s))
                u, v = F(u + F(OW / F(2))), F(v + F(OH / F(2)))
                left, right, top, bottom = min(left, u), max(right, u), min(top, v), max(bottom, v)
            if mode != EXPAND:
                w, h = F(x1 - x0), F(y1 - y0)
                new_w, new_h = F(right - left), F(bottom - top)
                turned = (w < h) != (new_w < new_h)
                dw, dh = F((new_w - (h if turned else w)) * F(0.5)), F((new_h - (w if turned else h)) * F(0.5))
                if mode == HALFWAY:
                    dw, dh = F(dw * F(0.5)), F(dh * F(0.5))
                left, top, right, bottom = F(left + dw), F(top + dh), F(right - dw), F(bottom - dh)
            area = F(F(right - left) * F(bottom - top))
            l2, r2 = min(max(left, F(0)), OW), min(max(right, F(0)), OW)
            t2, b2 = min(max(top, F(0)), OH), min(max(bottom, F(0)), OH)
            inside = F(F(r2 - l2) * F(b2 - t2))
            if area > 0:
                stays = F(inside / area) >= threshold
            else:
                stays = threshold <= 0 or (l2 == left and r2 == right and t2 == top and b2 == bottom)
            if not stays:
                continue
            if sized:
                r2, b2 = F(r2 - l2), F(b2 - t2)
            if normalized:
                across, down = F(F(1) / OW), F(F(1) / OH)
                l2, r2, t2, b2 = F(l2 * across), F(r2 * across), F(t2 * down), F(b2 * down)
            out[4 * n_out + low_at[0]], out[4 * n_out + low_at[1]] = l2, t2
            out[4 * n_out + high_at[0]], out[4 * n_out + high_at[1]] = r2, b2
            kept[n_out] = k
            n_out += 1
        out_counts[i] = n_out - start
    return n_out


@jit
def encode(boxes, first, counts, labels, label_first, anchors, criteria, offset, scale, means, stds, out, out_labels):
    """Match anchor boxes [A, 4] with each sample's boxes; results are ``out`` [N, A, 4] and ``out_labels`` [N, A].

    Every box is matched with the anchor that it overlaps most; every other anchor with the box that overlaps it most,
    if their intersection over union is above ``criteria``. Among equals, the last one wins.
    """
    A = len(anchors)
    lo_x, lo_y = anchors[:, 0].copy(), anchors[:, 1].copy()
    hi_x, hi_y = anchors[:, 2].copy(), anchors[:, 3].copy()
    area, row = np.empty(A, F), np.empty(A, F)
    best, which = np.empty(A, F), np.empty(A, np.int64)
    centred = np.empty((A, 4), F)
    for j in range(A):
        area[j] = F(F(hi_x[j] - lo_x[j]) * F(hi_y[j] - lo_y[j]))
        centred[j, 0], centred[j, 1] = F(F(lo_x[j] + hi_x[j]) * F(0.5)), F(F(lo_y[j] + hi_y[j]) * F(0.5))
        centred[j, 2], centred[j, 3] = F(hi_x[j] - lo_x[j]), F(hi_y[j] - lo_y[j])
    for i in range(len(counts)):
        best[:] = F(-1)
        which[:] = 0
        for k in range(counts[i]):
            b = first[i] + 4 * k
            x0, y0, x1, y1 = boxes[b], boxes[b + 1], boxes[b + 2], boxes[b + 3]
            own = F(F(x1 - x0) * F(y1 - y0))
            for j in range(A):
                w = max(F(min(x1, hi_x[j]) - max(x0, lo_x[j])), F(0))
                h = max(F(min(y1, hi_y[j]) - max(y0, lo_y[j])), F(0))
                both = F(w * h)
                row[j] = F(both / F(F(own + area[j]) - both))
            top = 0
            for j in range(A):
                if row[j] >= row[top]:
                    top = j
            row[top] = F(2)
            for j in range(A):
                if row[j] >= best[j]:
                    best[j] = row[j]
                    which[j] = k
        for j in range(A):
            matched = best[j] > criteria
            out_labels[i, j] = labels[label_first[i] + which[j]] if matched else 0
            if offset and not matched:
                out[i, j] = F(0)
            elif not matched:
                out[i, j] = centred[j]
            else:
                b = first[i] + 4 * which[j]
                for q in range(4):
                    low, high = boxes[b + q % 2], boxes[b + 2 + q % 2]
                    value = F(F(low + high) * F(0.5)) if q < 2 else F(high - low)
                    if offset:
                        value, anchor = F(value * scale), F(centred[j, q] * scale)
                        if q < 2:
                            value = F(F(value - anchor) / F(centred[j, q + 2] * scale))
                        else:
                            value = F(math.log(F(value / anchor)))
                        value = F(F(value - means[q]) / stds[q])
                    out[i, j, q] = value
