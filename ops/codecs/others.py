"""The images of a batch that are no JPEGs: their headers, in one table, or what is wrong with them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..errors import SampleError
from ..kernels import Kernels
from . import native_loops
from .format import BITS, CHANNELS, COLUMNS, FORMAT, Header
from .formats import BY_CODE, BY_NAME, probe, recognise
from .jpeg.format import CODE as JPEG

_jpegs: Any = Kernels(".jpeg.header", __package__)
_loops: Any = Kernels(".probe_cpu", __package__)


@dataclass(frozen=True, slots=True)
class Others:
    """The images of a batch that are no JPEGs."""

    places: I64
    """[M] Those with a header."""
    rows: I64
    """[M, 6] Their headers."""
    wrong: dict[int, SampleError]
    """The errors of others, by place."""

    def some(self, which: I64, n: int) -> Others:
        """Those of the images ``which`` of the batch of ``n``, in that order."""
        known = np.full(n, -1)
        known[self.places] = np.arange(len(self.places))
        found = known[which]
        wrong = {k: self.wrong[i] for k, i in enumerate(which.tolist()) if i in self.wrong} if self.wrong else {}
        return Others(np.flatnonzero(found >= 0), self.rows[found[found >= 0]], wrong)


def encoded_bytes(batch: Batch, i: int) -> memoryview:
    """The bytes of image ``i``; no copy."""
    start = int(batch.offsets[i])
    return memoryview(batch.data[start : start + int(batch.shapes[i, 0])])


def row_of(header: Header) -> tuple[int, ...]:
    """A header as a row of numbers."""
    return BY_NAME[header.format].code, header.width, header.height, header.channels, header.bits, header.orientation


def header_of(row: I64) -> Header:
    """The header that is a row of numbers."""
    format, *rest = row.tolist()
    return Header(BY_CODE[format].name, *rest)


def are_deep(rows: I64) -> npt.NDArray[np.bool_]:
    """`deep_colour.is_deep` of headers [M, 6]."""
    deep: npt.NDArray[np.bool_] = (rows[:, BITS] > 8) & (rows[:, CHANNELS] > 1)
    return deep


_probed: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], Others]] = {}


def others_of(batch: Batch) -> Others:
    """The images that are no JPEGs. A batch is probed once, as `jpeg.header.rows_of` walks it once."""
    key = id(batch.offsets)
    known = _probed.get(key)
    if known is not None and known[0]() is batch.offsets and known[1]() is batch.data:
        return known[2]
    which = np.flatnonzero(_jpegs.rows_of(batch)["status"] == _jpegs.NOT_JPEG)
    rows, wrong = np.zeros((len(which), COLUMNS), np.int64), dict[int, SampleError]()
    if len(which):
        sizes = batch.shapes[which, 0].astype(np.int64)
        _loops.headers(native_loops.readonly(batch.data), batch.offsets[which], sizes, rows)
    for k in np.flatnonzero(rows[:, FORMAT] == JPEG).tolist():
        i = int(which[k])
        data = encoded_bytes(batch, i)
        try:
            name = recognise(data)
            if name != "jpeg":
                rows[k] = row_of(probe(data, name))
        except SampleError as e:
            wrong[i] = e.bare()
    found = rows[:, FORMAT] != JPEG
    others = Others(which[found], rows[found], wrong)
    remember(batch, others)
    return others


def remember(batch: Batch, others: Others) -> None:
    """Keep what is known of a batch, as long as it is there."""
    key = id(batch.offsets)
    _probed[key] = weakref.ref(batch.offsets, lambda _: _probed.pop(key, None)), weakref.ref(batch.data), others


def some_of(batch: Batch, which: I64) -> Batch:
    """``batch.take(which)``, with what is known already of the images' headers."""
    taken = batch.take(which)
    rows, scans = _jpegs.walked(batch)
    _jpegs.remember(taken, rows[which], scans)
    remember(taken, others_of(batch).some(which, len(batch)))
    return taken
