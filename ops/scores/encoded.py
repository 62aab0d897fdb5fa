"""Scores of encoded bytes: the quality that a JPEG was saved with, lengths of texts, hashes of contents.

They have no gpu kernel: readers return bytes in host memory, and each of the three reads only a file's header or passes
once over its bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..codecs.jpeg.tables import ZIGZAG, quantisation
from ..context import Context
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_loops: Any = Kernels(".encoded_cpu", __package__)

Unit = Literal["words", "characters", "bytes"]
_UNITS: tuple[Unit, ...] = ("words", "characters", "bytes")
"""Units in which text_length counts. A unit's index here is its number in `encoded_cpu`."""


class _OfBytes(Operator, abstract=True):
    """Base class of operators that take the bytes of files or texts, and return one number per sample."""

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8) or data.ndim not in (None, 1):
            raise SpecError(f"takes bytes, uint8[?], got {data}")
        return Spec((), DALIDataType.INT32)

    def numbers(self, ctx: Context, data: Batch, dtype: Any = np.int32) -> Batch:
        """Return an uninitialised output batch with one number of type ``dtype`` per sample."""
        return Batch.allocate(ctx.empty, np.empty((len(data), 0), np.int32), dtype, "", data.samples)


class JpegQuality(_OfBytes, name="jpeg_quality"):
    """Estimate the quality (1 to 100) that JPEG files were saved with, from their quantisation tables (int32).

    The estimate is ImageMagick's (JPEGSetImageQuality in its coders/jpeg.c): sums of the file's tables are compared
    with those of the Independent JPEG Group's tables at each quality. It is exact for files that libjpeg wrote. The
    output is 0 for bytes that are not a JPEG, and for tables that resemble none of the IJG's below quality 51.
    """

    example = "{op: jpeg_quality, in: jpegs, out: quality}"

    def cpu(self, ctx: Context, jpegs: Batch) -> Batch:
        out = self.numbers(ctx, jpegs)
        _loops.jpeg_quality(jpegs.data, jpegs.offsets, jpegs.sizes, *ijg_sums(), out.data)
        return out


class TextLength(_OfBytes, name="text_length"):
    """Return the number of words, characters or bytes of texts in UTF-8 (int32).

    Words are separated as by Python's str.split(): at white space, including that of Unicode.
    Characters are code points; a byte that is not UTF-8 counts as one character, or belongs to the one before it.
    """

    example = "{op: text_length, in: caption, unit: words, out: caption_words}"

    unit: Annotated[Unit, Arg("unit in which the length is counted")] = "words"

    def cpu(self, ctx: Context, texts: Batch) -> Batch:
        out = self.numbers(ctx, texts)
        _loops.text_length(texts.data, texts.offsets, texts.sizes, _UNITS.index(self.unit), out.data)
        return out


class ContentHash(_OfBytes, name="content_hash"):
    """Hash the bytes of samples of any type by XXH64 with seed 0 (uint64), as the xxhash library does.

    Equal hashes of different contents are a matter of chance: with 100 million samples the chance of one such pair is
    0.03 %. XXH64 is not safe against contents that are made to collide.
    """

    example = "{op: content_hash, in: jpegs, out: xxh64}"

    def infer(self, *specs: Spec) -> Spec:
        return Spec((), DALIDataType.UINT64)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        out = self.numbers(ctx, data, np.uint64)
        size = data.dtype.itemsize
        content = np.ascontiguousarray(data.data).view(np.uint8)
        _loops.content_hash(content, data.offsets * size, data.sizes * size, out.data)
        return out


@cache
def ijg_sums() -> tuple[I64, I64]:
    """Return sums of entries of the IJG's tables at each quality: int64[2, 100] for some entries and for all entries.

    Row 0 is for files with one table (two of its entries), row 1 for files with several (two entries of each of the
    first two tables). ImageMagick calls these arrays ``hash`` and ``sums``.
    """
    tables = np.stack([quantisation(q) for q in range(1, 101)])
    place: npt.NDArray[np.int64] = np.argsort(ZIGZAG)
    luminance = tables[:, 0, place[2]] + tables[:, 0, place[53]]
    both = luminance + tables[:, 1, place[0]] + tables[:, 1, place[63]]
    totals = tables.sum(axis=2)
    return np.stack([luminance, both]), np.stack([totals[:, 0], totals.sum(axis=1)])
