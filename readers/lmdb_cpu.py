"""Compiled loops that scan the pages of an LMDB file, without the LMDB library and without trusting the pages.

Format: LMDB 0.9 (mdb.c of OpenLDAP: MDB_page, MDB_node, MDB_meta, MDB_db), 64-bit little-endian. Only the main database
is scanned; nothing is read outside the file, and no page twice, so that the scan ends whatever the pages say.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

BRANCH, LEAF = 1, 2  # page flags
BIG, SUB, DUP = 1, 2, 4  # node flags: value on pages of its own; a database; several values
_PAGE_HEADER, _NODE_HEADER = 16, 8
MAX_DEPTH = 32

# kinds of an entry
GOOD = 0
BAD_NODE = 1  # a record whose key or value is outside the file
BAD_PAGE = 2  # not a page: its records are lost
NOT_PLAIN = 3  # a named database, or a key with several values
BAD_OVERFLOW = 4  # found when read: the pages of the value are not marked as overflow pages


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def _unsigned(data: Any, at: Any, nbytes: Any) -> Any:
    value = np.uint64(0)
    for k in range(nbytes):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return np.int64(value)


@numba.njit("boolean(uint8[::1], int64, int64, int64)", nogil=True, cache=True)
def _is_page(data: Any, at: Any, page_size: Any, number: Any) -> Any:
    """Whether a valid branch or leaf page of LMDB begins at ``at``: it states ``number`` as its own number, and its
    node table fits into the page."""
    flags = _unsigned(data, at + 10, 2)
    lower, upper = _unsigned(data, at + 12, 2), _unsigned(data, at + 14, 2)
    kind = flags & 0xF
    return (
        _unsigned(data, at, 8) == number
        and kind in (BRANCH, LEAF)
        and flags & 0x20 == 0  # LEAF2: values of one size without nodes
        and _PAGE_HEADER <= lower <= upper <= page_size
        and lower % 2 == 0
    )


@numba.njit(
    "int64(uint8[::1], int64, int64, int64, int64, uint8[::1], int64[:, ::1], int64[::1])", nogil=True, cache=True
)
def walk(data: Any, start: Any, size: Any, page_size: Any, root: Any, visited: Any, out: Any, stack: Any) -> Any:
    """Walk an LMDB tree. Fill ``out`` with a row per entry (key offset, key size, value offset, value size, kind) until
    it is full. Return the number of rows.

    The file is ``data[start : start + size]``; offsets count from its start. ``stack`` keeps the position in the tree:
    depth, then page and next node of each level; all zeros at first. Call again with it until ``out`` is not filled.
    """
    pages = size // page_size
    rows = 0
    if stack[0] == 0:
        stack[0], stack[1], stack[2] = 1, root, 0
    while stack[0] > 0 and rows < len(out):
        depth = stack[0]
        page, node = stack[2 * depth - 1], stack[2 * depth]
        at = start + page * page_size
        bad = page < 0 or page >= pages
        if node == 0:
            bad = bad or visited[page] != 0 or not _is_page(data, at, page_size, page)
            if not bad:
                visited[page] = 1
        if bad:
            out[rows] = 0
            out[rows, 2], out[rows, 3], out[rows, 4] = max(0, min(page, pages)) * page_size, page_size, BAD_PAGE
            rows += 1
            stack[0] = depth - 1
            continue
        count = (_unsigned(data, at + 12, 2) - _PAGE_HEADER) // 2
        if node >= count:
            stack[0] = depth - 1
            continue
        stack[2 * depth] = node + 1
        inside = _unsigned(data, at + _PAGE_HEADER + 2 * node, 2)
        is_leaf = _unsigned(data, at + 10, 2) & 0xF == LEAF
        broken = inside < _PAGE_HEADER or inside + _NODE_HEADER > page_size
        if not broken:
            low, high = _unsigned(data, at + inside, 2), _unsigned(data, at + inside + 2, 2)
            flags, key_size = _unsigned(data, at + inside + 4, 2), _unsigned(data, at + inside + 6, 2)
            key = inside + _NODE_HEADER
            broken = key + key_size > page_size
        if not is_leaf:
            if broken or depth == MAX_DEPTH:
                out[rows] = 0
                out[rows, 2], out[rows, 3], out[rows, 4] = page * page_size, page_size, BAD_PAGE
                rows += 1
            else:
                stack[0] = depth + 1
                stack[2 * depth + 1], stack[2 * depth + 2] = low | high << 16 | flags << 32, 0
            continue
        out[rows] = 0
        out[rows, 2], out[rows, 4] = page * page_size, BAD_NODE
        if not broken:
            value_size, value = low | high << 16, key + key_size
            out[rows, 0], out[rows, 1] = page * page_size + key, key_size
            if flags & (SUB | DUP):
                out[rows, 4] = NOT_PLAIN
            elif flags & BIG:
                if value + 8 <= page_size:
                    first = _unsigned(data, at + value, 8)
                    if 0 <= first < pages and value_size <= size - first * page_size - _PAGE_HEADER:
                        out[rows, 2] = first * page_size + _PAGE_HEADER
                        out[rows, 3], out[rows, 4] = value_size, GOOD
            elif value + value_size <= page_size:
                out[rows, 2], out[rows, 3], out[rows, 4] = page * page_size + value, value_size, GOOD
        rows += 1
    return rows


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True, cache=True)
def check_overflow(data: Any, starts: Any, page_sizes: Any, offsets: Any, sizes: Any, kinds: Any) -> None:
    """Check values that begin right after a page header: they must be on overflow pages, and on enough of them.
    Otherwise set their kind to BAD_OVERFLOW.

    ``offsets`` count from the file's start. Values inside leaf pages never begin at a page's first node.
    """
    for i in range(len(offsets)):
        inside = offsets[i] % page_sizes[i]
        if kinds[i] != GOOD or inside != _PAGE_HEADER:
            continue
        at = starts[i] + offsets[i] - _PAGE_HEADER
        needed = (_PAGE_HEADER + sizes[i] + page_sizes[i] - 1) // page_sizes[i]
        right = (
            _unsigned(data, at, 8) == offsets[i] // page_sizes[i]
            and _unsigned(data, at + 10, 2) & 0xF == 4
            and _unsigned(data, at + 12, 4) >= needed
        )
        if not right:
            kinds[i] = BAD_OVERFLOW
