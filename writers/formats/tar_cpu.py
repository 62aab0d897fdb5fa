"""Compiled loops that frame members of a tar archive for a whole batch without the GIL: names, headers, padding, lines
of the index.

POSIX.1-1988 (ustar) headers; names that do not fit get GNU's long-name member (GNU tar manual, "Basic Tar Format").
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..bytes.frames_cpu import put_decimal

_BLOCK = 512
_NAME, _PREFIX = 100, 155
"""Sizes in bytes of a tar header's fields for the name of a member and for the prefix of a long name."""
_LINK = np.frombuffer(b"././@LongLink", np.uint8)
_OPEN_MODE = np.frombuffer(b"0000644\0" + b"0000000\0" * 2, np.uint8)
_MAGIC = np.frombuffer(b"ustar\00000", np.uint8)
_ZERO = np.frombuffer(b"0000000", np.uint8)
_SLASH, _DOT, _SPACE, _NEWLINE, _DIGIT = 47, 46, 32, 10, 48


@numba.njit(nogil=True, cache=True)
def _is_plain(c: Any) -> Any:
    """Whether a byte is a letter, a digit or one of ``_ @ + = ~ # -``."""
    letter = 48 <= c <= 57 or 64 <= c <= 90 or 97 <= c <= 122
    return letter or c == 95 or c == 43 or c == 61 or c == 126 or c == 35 or c == 45


@numba.njit(nogil=True, cache=True)
def _is_alphanumeric(c: Any) -> Any:
    return 48 <= c <= 57 or 65 <= c <= 90 or 97 <= c <= 122


@numba.njit(nogil=True, cache=True)
def common_sizes(data: Any, starts: Any, sizes: Any) -> Any:
    """Return the length in bytes of each key without its extension, -1 for a key that does not match `names.COMMON`,
    int64[N]."""
    out = np.empty(len(starts), np.int64)
    for i in range(len(starts)):
        at, stop, folders, part = starts[i], starts[i] + sizes[i], 0, starts[i]
        good = True
        for k in range(at, stop):
            if data[k] == _SLASH:
                good = good and 0 < k - part <= 121 and _is_plain(data[part])
                part = k + 1
                folders += 1
            else:
                good = good and (_is_plain(data[k]) or data[k] == _DOT)
        end = part
        while end < stop and data[end] != _DOT:
            end += 1
        good = good and folders <= 4 and 0 < end - part <= 120
        if end < stop:
            good = good and 0 < stop - end - 1 <= 8
            for k in range(end + 1, stop):
                good = good and _is_alphanumeric(data[k])
        out[i] = end - at if good else -1
    return out


@numba.njit(nogil=True, cache=True)
def hash_names(data: Any, starts: Any, sizes: Any) -> Any:
    """Return the hash FNV-1a of each name (Fowler, Noll, Vo; 64 bits), uint64[N]."""
    out = np.empty(len(starts), np.uint64)
    for i in range(len(starts)):
        h = np.uint64(0xCBF29CE484222325)
        for k in range(starts[i], starts[i] + sizes[i]):
            h = (h ^ np.uint64(data[k])) * np.uint64(0x100000001B3)
        out[i] = h
    return out


@numba.njit(nogil=True, cache=True)
def _cut(keys: Any, start: Any, key_size: Any, name_size: Any) -> Any:
    """Return the offset at which a long name is split into a tar header's prefix and name; -1 if impossible."""
    for k in range(min(key_size - 1, _PREFIX), 0, -1):
        if keys[start + k] == _SLASH:
            return k if name_size - k - 1 <= _NAME else -1
    return -1


@numba.njit(nogil=True, cache=True)
def head_sizes(keys: Any, key_start: Any, key_size: Any, extension_starts: Any, which: Any) -> Any:
    """Return how many bytes of tar headers precede each member's content, int64[N * width]. Member ``j`` of record
    ``i`` is named ``<key>.<extension>``, with key i and extension ``which[i, j]``, whose text begins at one of
    ``extension_starts`` and ends at the next."""
    n, width = which.shape
    out = np.empty(n * width, np.int64)
    for i in range(n):
        for j in range(width):
            e = which[i, j]
            size = key_size[i] + 1 + extension_starts[e + 1] - extension_starts[e]
            out[i * width + j] = _BLOCK
            if size > _NAME and _cut(keys, key_start[i], key_size[i], size) < 0:
                out[i * width + j] += _BLOCK + (size + _BLOCK) // _BLOCK * _BLOCK
    return out


@numba.njit(nogil=True, cache=True)
def _put_octal(out: Any, at: Any, digits: Any, value: Any) -> None:
    for k in range(digits - 1, -1, -1):
        out[at + k] = np.uint8(_DIGIT + (value & 7))
        value >>= 3


@numba.njit(nogil=True, cache=True)
def _put_header(out: Any, at: Any, size: Any, kind: Any) -> None:
    """Write a tar header at ``at`` around a name that is already there. The header is for a regular file without owner,
    with modification time 0."""
    for k in range(len(_OPEN_MODE)):
        out[at + 100 + k] = _OPEN_MODE[k]
    _put_octal(out, at + 124, 11, size)
    for k in range(11):
        out[at + 136 + k] = _DIGIT
    out[at + 156] = kind
    for k in range(len(_MAGIC)):
        out[at + 257 + k] = _MAGIC[k]
    for k in range(len(_ZERO)):
        out[at + 329 + k] = _ZERO[k]
        out[at + 337 + k] = _ZERO[k]
    total = np.uint32(8 * _SPACE)
    for byte in out[at : at + _BLOCK]:
        total += np.uint32(byte)
    _put_octal(out, at + 148, 6, np.int64(total))
    out[at + 155] = _SPACE


@numba.njit(nogil=True, cache=True)
def _name_byte(keys: Any, start: Any, size: Any, extensions: Any, first: Any, k: Any) -> Any:
    """Return byte ``k`` of the name ``<key>.<extension>``."""
    if k < size:
        return keys[start + k]
    return np.uint8(_DOT) if k == size else extensions[first + k - size - 1]


@numba.njit(nogil=True, cache=True)
def put_heads(
    out: Any, content: Any, heads: Any, sizes: Any, copied: Any, keys: Any, key_start: Any, key_size: Any,
    extensions: Any, extension_starts: Any, which: Any,
) -> None:  # fmt: skip
    """Write all of a tar file except the contents of its members: headers before each content, which begins at
    ``content[m]``, and zeros after it. ``sizes`` are the sizes of the contents; ``copied`` bytes of each will be in
    ``out``. Names are given as in `head_sizes`, which computed ``heads``."""
    n, width = which.shape
    for m in range(n * width):
        i, e = m // width, which[m // width, m % width]
        first, start, key = extension_starts[e], key_start[i], key_size[i]
        size = key + 1 + extension_starts[e + 1] - first
        at = content[m] - heads[m]
        out[at : content[m]] = 0
        end = content[m] + copied[m]
        out[end : end + -sizes[m] % _BLOCK] = 0
        skipped = np.int64(0)
        if heads[m] > _BLOCK:
            for k in range(len(_LINK)):
                out[at + k] = _LINK[k]
            _put_header(out, at, size + 1, np.uint8(76))
            at += _BLOCK
            for k in range(size):
                out[at + k] = _name_byte(keys, start, key, extensions, first, k)
            at = content[m] - _BLOCK
        elif size > _NAME:
            skipped = _cut(keys, start, key, size) + 1
            for k in range(skipped - 1):
                out[at + 345 + k] = keys[start + k]
        for k in range(min(size - skipped, _NAME)):
            out[at + k] = _name_byte(keys, start, key, extensions, first, skipped + k)
        _put_header(out, at, sizes[m], np.uint8(_DIGIT))


@numba.njit(nogil=True, cache=True)
def put_index(
    out: Any, content: Any, sizes: Any, keys: Any, key_start: Any, key_size: Any, extensions: Any,
    extension_starts: Any, which: Any,
) -> Any:  # fmt: skip
    """Write the lines of a tar file's index: ``extension offset size name`` for each member of a record. ``content``
    holds the offsets in the file; names are given as in `head_sizes`. Return the number of bytes: at most those of
    names and extensions and 43 per member."""
    n, width = which.shape
    at = 0
    for i in range(n):
        for j in range(width):
            e = which[i, j]
            first, last = extension_starts[e], extension_starts[e + 1]
            for k in range(first, last):
                out[at + k - first] = extensions[k]
            at += last - first
            out[at] = _SPACE
            at = put_decimal(out, at + 1, content[i * width + j])
            out[at] = _SPACE
            at = put_decimal(out, at + 1, sizes[i * width + j])
            out[at] = _SPACE
            at += 1
            size = key_size[i] + 1 + last - first
            for k in range(size):
                out[at + k] = _name_byte(keys, key_start[i], key_size[i], extensions, first, k)
            at += size
            out[at] = _SPACE if j < width - 1 else _NEWLINE
            at += 1
    return at
