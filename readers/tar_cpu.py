"""Compiled loops that list the members of a tar archive and group them into samples, without the GIL and without
trusting the archive. `readers.webdataset` calls them.

Formats: POSIX.1-1988 (ustar) and -2001 (pax) headers, GNU long names and sizes (GNU tar manual, "Basic Tar Format"),
old archives without a magic. Samples: consecutive members whose names agree up to the first dot of the base name (the
WebDataset convention).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

BLOCK = 512
MAX_NAME = 4096
_MAX_EXTENDED = 1 << 20  # largest size in bytes of a pax header or long name

HEADER, DATA, SIZE, KIND, NAME, NAME_SIZE = range(6)
"""Columns of the row that describes a tar member: offsets of its header and its data in the file, size, kind, offset of
its name in the array of names, and the name's size."""
COLUMNS = 6

# kinds of a member
GOOD = 0
LOST = 1  # bytes without a header
TRUNCATED = 2  # the file ends before its member does
UNSUPPORTED = 3  # a sparse file, or a link out of the archive
HARD_LINK = 4  # to an earlier member; for links, DATA and SIZE are the extent of the target's name in the names
SYMBOLIC_LINK = 5

AT, NAMES_USED = range(2)
"""Elements of ``state``, with which a scan continues: offset in the archive, and bytes of names written so far."""


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def _number(data: Any, at: Any, width: Any) -> Any:
    """Parse a number of a tar header: octal, or in GNU's base 256. Return -1 if it is neither."""
    if data[at] & 0x80:
        if data[at] != 0x80:
            return np.int64(-1)
        value = np.int64(0)
        for k in range(1, width):
            if value >= 1 << 54:
                return np.int64(-1)
            value = value * 256 + data[at + k]
        return value
    value, k = np.int64(0), 0
    while k < width and data[at + k] == 32:
        k += 1
    while k < width and 48 <= data[at + k] <= 55:
        value = value * 8 + (data[at + k] - 48)
        k += 1
    return value if k == width or data[at + k] in (0, 32) else np.int64(-1)


@numba.njit("boolean(uint8[::1], int64, boolean)", nogil=True, cache=True)
def _is_header(data: Any, at: Any, strict: Any) -> Any:
    """Whether the 512 bytes at ``at`` are a tar header with a right checksum (the sum of its bytes, unsigned or, as in
    old programs, signed)."""
    unsigned, signed = np.int64(256), np.int64(256)  # the checksum's own field counts as eight spaces
    for k in range(BLOCK):
        if k < 148 or k >= 156:
            unsigned += data[at + k]
            signed += np.int8(data[at + k])
    written = _number(data, at + 148, np.int64(8))
    if written not in (unsigned, signed):
        return False
    return not strict or (
        data[at + 257] == 117 and data[at + 258] == 115 and data[at + 259] == 116 and data[at + 260] == 97
    )


@numba.njit("boolean(uint8[::1], int64)", nogil=True, cache=True)
def _is_zero(data: Any, at: Any) -> Any:
    for k in range(BLOCK):  # noqa: SIM110 - Numba has no generators here
        if data[at + k] != 0:
            return False
    return True


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def _length(data: Any, at: Any, most: Any) -> Any:
    """Return the number of bytes before the first zero byte, at most ``most``."""
    n = 0
    while n < most and data[at + n] != 0:
        n += 1
    return n


@numba.njit(nogil=True, cache=True)  # no signature: the texts are constants, which have a type of their own
def _starts(data: Any, at: Any, stop: Any, text: Any) -> Any:
    if stop - at < len(text):
        return False
    for k in range(len(text)):  # noqa: SIM110
        if data[at + k] != text[k]:
            return False
    return True


_PATH = np.frombuffer(bytearray(b"path="), np.uint8)
_SIZE = np.frombuffer(bytearray(b"size="), np.uint8)
_LINK = np.frombuffer(bytearray(b"linkpath="), np.uint8)
_SPARSE = np.frombuffer(bytearray(b"GNU.sparse."), np.uint8)


@numba.njit(
    "Tuple((boolean, int64, int64, int64, boolean, int64, int64))(uint8[::1], int64, int64)", nogil=True, cache=True
)
def _pax(data: Any, at: Any, stop: Any) -> Any:
    """Parse the extended header (pax) of a member: records "length key=value". Return whether they are valid; offset
    and length of the path (-1 if there is none); the size (or -1); whether it is a sparse file; offset and length of a
    link's target (or -1)."""
    path, path_size, size, sparse = np.int64(-1), np.int64(0), np.int64(-1), False
    link, link_size = np.int64(-1), np.int64(0)
    while at < stop and data[at] != 0:
        length, k = np.int64(0), at
        while k < stop and k - at < 10 and 48 <= data[k] <= 57:
            length = length * 10 + (data[k] - 48)
            k += 1
        end = at + length
        if k >= stop or data[k] != 32 or length <= k - at + 2 or end > stop or data[end - 1] != 10:
            return False, path, path_size, size, sparse, link, link_size
        k += 1
        if _starts(data, k, end, _PATH):
            path, path_size = k + 5, end - 1 - (k + 5)
        elif _starts(data, k, end, _SIZE):
            size = np.int64(0)
            for j in range(k + 5, end - 1):
                if not 48 <= data[j] <= 57 or size >= 1 << 56:
                    return False, path, path_size, size, sparse, link, link_size
                size = size * 10 + (data[j] - 48)
        elif _starts(data, k, end, _LINK):
            link, link_size = k + 9, end - 1 - (k + 9)
        elif _starts(data, k, end, _SPARSE):
            sparse = True
        at = end
    return True, path, path_size, size, sparse, link, link_size


@numba.njit("int64(uint8[::1], int64, int64, int64[:, ::1], uint8[::1], int64[::1])", nogil=True, cache=True)
def walk(data: Any, start: Any, stop: Any, members: Any, names: Any, state: Any) -> Any:
    """Scan the archive ``data[start : stop]`` for regular members, links and corrupt ranges, until the arrays are full.
    Return their number.

    ``state[AT]`` is the offset to continue at; it is ``stop`` when the scan is complete.
    """
    rows = 0
    at, used = state[AT], state[NAMES_USED]
    path, path_size, pax_size, sparse = np.int64(-1), np.int64(0), np.int64(-1), False
    link, link_size = np.int64(-1), np.int64(0)
    first = at  # offset of the first header of the next member
    zeros = 0
    in_padding = False
    while rows < len(members) and len(names) - used >= 2 * MAX_NAME:
        if path < 0 and pax_size < 0 and link < 0 and not sparse:
            first = at
        if stop - at < BLOCK:
            rest = False
            for k in range(at, stop):
                rest = rest or data[k] != 0
            if rest or first < at or in_padding:
                members[rows, HEADER], members[rows, DATA], members[rows, SIZE] = (
                    first - start,
                    first - start,
                    0 if in_padding else stop - first,
                )
                members[rows, KIND], members[rows, NAME], members[rows, NAME_SIZE] = TRUNCATED, used, 0
                rows += 1
            at = first = stop
            break
        if not _is_header(data, at, False):
            if first == at and _is_zero(data, at):
                zeros += 1
                at += BLOCK
                if zeros == 2:
                    at = first = stop
                    break
                continue
            begin = first
            at += BLOCK
            while stop - at >= BLOCK and not _is_header(data, at, True):
                at += BLOCK
            if stop - at < BLOCK:
                at = stop
            members[rows, HEADER], members[rows, DATA], members[rows, SIZE] = begin - start, begin - start, at - begin
            members[rows, KIND], members[rows, NAME], members[rows, NAME_SIZE] = LOST, used, 0
            rows += 1
            path, pax_size, sparse, zeros, link = np.int64(-1), np.int64(-1), False, 0, np.int64(-1)
            continue
        zeros, own = 0, at
        kind = data[at + 156]
        size = _number(data, at + 124, np.int64(12))
        if size < 0:
            size = np.int64(1) << 60
        if pax_size >= 0 and kind not in (120, 103, 76, 75):
            size = pax_size
        body = at + BLOCK
        if kind in (120, 103, 76, 75):  # x, g, L, K: headers that precede a member
            right = size <= _MAX_EXTENDED and size <= stop - body
            if right and kind == 120:
                right, p, p_size, s, is_sparse, target, target_size = _pax(data, body, body + size)
                if p >= 0:
                    path, path_size = p, p_size
                if target >= 0:
                    link, link_size = target, target_size
                if s >= 0:
                    pax_size = s
                sparse = sparse or is_sparse
            elif right and kind == 76:
                path, path_size = body, _length(data, body, size)
            elif right and kind == 75:
                link, link_size = body, _length(data, body, size)
            if not right:
                fits = size <= stop - body
                end = min(stop, body + (size + BLOCK - 1) // BLOCK * BLOCK) if fits else stop
                members[rows, HEADER], members[rows, DATA], members[rows, SIZE] = (
                    first - start,
                    first - start,
                    end - first,
                )
                members[rows, KIND], members[rows, NAME] = LOST if fits else TRUNCATED, used
                members[rows, NAME_SIZE] = 0
                rows += 1
                at = end
                path, pax_size, sparse, link = np.int64(-1), np.int64(-1), False, np.int64(-1)
            else:
                at = min(stop, body + (size + BLOCK - 1) // BLOCK * BLOCK)
            continue
        if 51 <= kind <= 54:  # devices, folders, pipes: no data, whatever their size field says
            at = body
            path, pax_size, sparse, link = np.int64(-1), np.int64(-1), False, np.int64(-1)
            continue
        if kind == 83:  # S: GNU sparse, with further blocks of its map
            sparse = True
            more = data[at + 482] != 0
            while more and stop - body >= BLOCK:
                more = data[body + 504] != 0
                body += BLOCK
        members[rows, HEADER], members[rows, DATA], members[rows, SIZE] = first - start, body - start, size
        members[rows, KIND] = UNSUPPORTED if sparse else GOOD
        members[rows, NAME] = used
        if kind == 49 or kind == 50:
            members[rows, KIND] = HARD_LINK if kind == 49 else SYMBOLIC_LINK
            at = body
        elif size > stop - body:
            members[rows, KIND], members[rows, SIZE] = TRUNCATED, stop - body
            at = stop
        else:
            at = body + (size + BLOCK - 1) // BLOCK * BLOCK
            if at > stop:  # the archive was cut: the member's padding, and perhaps further members, are missing
                at = start + (stop - start) // BLOCK * BLOCK
                in_padding = True
        if path >= 0:
            n = path_size if path_size < MAX_NAME else np.int64(MAX_NAME)
            names[used : used + n] = data[path : path + n]
            used += n
        else:
            header = own
            ustar = data[header + 257] == 117 and data[header + 258] == 115 and data[header + 262] == 0
            n = _length(data, header + 345, np.int64(155)) if ustar else np.int64(0)
            if n > 0:
                names[used : used + n] = data[header + 345 : header + 345 + n]
                names[used + n] = 47
                used += n + 1
            n = _length(data, header, np.int64(100))
            names[used : used + n] = data[header : header + n]
            used += n
        members[rows, NAME_SIZE] = used - members[rows, NAME]
        if kind == 49 or kind == 50:
            if link < 0:
                link, link_size = own + 157, _length(data, own + 157, np.int64(100))
            n = link_size if link_size < MAX_NAME else np.int64(MAX_NAME)
            names[used : used + n] = data[link : link + n]
            members[rows, DATA], members[rows, SIZE] = used, n
            used += n
        rows += 1
        path, pax_size, sparse, link = np.int64(-1), np.int64(-1), False, np.int64(-1)
    state[AT], state[NAMES_USED] = at, used
    return rows


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def key_length(names: Any, at: Any, size: Any) -> Any:
    """Return how many bytes of a member's name are its key: those before the first dot of its base name."""
    base = 0
    for k in range(size):
        if names[at + k] == 47:
            base = k + 1
    for k in range(base, size):
        if names[at + k] == 46:
            return k
    return size


@numba.njit("boolean(uint8[::1], int64, int64, uint8[::1], int64, int64, boolean)", nogil=True, cache=True)
def _same(a: Any, a_at: Any, a_size: Any, b: Any, b_at: Any, b_size: Any, case: Any) -> Any:
    if a_size != b_size:
        return False
    for k in range(a_size):
        x, y = a[a_at + k], b[b_at + k]
        if not case:
            x = x + np.uint8(32) if 65 <= x <= 90 else x
            y = y + np.uint8(32) if 65 <= y <= 90 else y
        if x != y:
            return False
    return True


@numba.njit(
    "int64(int64[:, ::1], uint8[::1], uint8[::1], int64[::1], int64[::1], boolean, int64[::1], int64[:, ::1])",
    nogil=True,
    cache=True,
)
def group(
    members: Any, names: Any, wanted: Any, wanted_starts: Any, wanted_outputs: Any, case: Any, firsts: Any, parts: Any
) -> Any:
    """Group tar members into samples. Fill in the first member of each sample, and the member for each of its outputs
    or -1. Return the number of samples.

    ``wanted[wanted_starts[w] : wanted_starts[w + 1]]`` is an extension of output ``wanted_outputs[w]``; the first
    member with such an extension counts. A corrupt range counts as the member for all outputs of the sample that it
    interrupts, or of a sample of its own. Members whose names begin with two underscores belong to no sample.
    """
    samples = 0
    previous = -1  # a member of the current sample
    for m in range(len(members)):
        at, size = members[m, NAME], members[m, NAME_SIZE]
        damaged = members[m, KIND] in (LOST, TRUNCATED)
        key = key_length(names, at, size)
        if not damaged:
            base = key
            while base > 0 and names[at + base - 1] != 47:
                base -= 1
            if size - base >= 2 and names[at + base] == 95 and names[at + base + 1] == 95:
                continue
        new = previous < 0 or size == 0
        if not new:
            other = members[previous, NAME]
            new = not _same(names, at, key, names, other, key_length(names, other, members[previous, NAME_SIZE]), True)
        if new:
            firsts[samples] = m
            parts[samples] = -1
            samples += 1
        if damaged:  # the sample is incomplete, whatever members it has
            parts[samples - 1] = m
            previous = -1
            continue
        previous = m
        for w in range(len(wanted_outputs)):
            low, n = wanted_starts[w], wanted_starts[w + 1] - wanted_starts[w]
            free = parts[samples - 1, wanted_outputs[w]] < 0
            if free and size - key - 1 == n and _same(names, at + key + 1, n, wanted, low, n, case):
                parts[samples - 1, wanted_outputs[w]] = m
    return samples


@numba.njit("void(uint8[::1], int64[::1], int64[::1], uint64[::1])", nogil=True, cache=True)
def hash_keys(names: Any, at: Any, sizes: Any, out: Any) -> None:
    """Hash each sample's key (FNV-1a)."""
    for i in range(len(at)):
        value = np.uint64(14695981039346656037)
        for k in range(key_length(names, at[i], sizes[i])):
            value = (value ^ np.uint64(names[at[i] + k])) * np.uint64(1099511628211)
        out[i] = value
