"""The beginnings of encoded files: as much as the host looks at where a GPU decodes them."""

from __future__ import annotations

from typing import Any

from numba import njit

from ...ops.codecs.jpeg.header import head_of, walking
from ...ops.codecs.plain_cpu import bmp_header, pnm_header

_LEAST, _PLAIN = 54, 1024
"""Bytes of a BMP or PNM: of smaller ones all is kept, of larger ones no more is looked at (`codecs.plain_cpu`)."""

scratch = walking
"""Arrays that `seen` works with."""


@njit(nogil=True, cache=True)
def seen(data: Any, row: Any, tables: Any, known: Any) -> Any:
    """How many bytes from the beginning of the file ``data`` the host looks at, as long as nothing turns out odd; all
    of them where a decoder of the host takes it, or may. ``row``, ``tables`` and ``known`` come from `scratch`."""
    size = len(data)
    if size < _LEAST:
        return size
    if data[0] == 0xFF and data[1] == 0xD8:
        return head_of(data, row, tables, known)
    row[0] = 0
    if data[0] == 66 and data[1] == 77:
        bmp_header(data, 0, row)
    elif data[0] == 80 and (data[1] == 53 or data[1] == 54):
        pnm_header(data, 0, size, row)
    return min(size, _PLAIN) if row[0] else size
