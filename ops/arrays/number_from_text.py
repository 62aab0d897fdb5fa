"""Operator number_from_text: parse numbers that are stored as text, such as labels in tar archives."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError
from ..types import DALIDataType, to_numpy

_MAX_TEXT = 32
"""Maximum bytes of a text that is parsed, including blanks around the number."""
_SAFE_DIGITS = 18
"""Number of decimal digits with which every integer fits into int64."""


class NumberFromText(Operator, name="number_from_text"):
    """Parse integers in decimal text (``cls`` of webdataset: ``7``, ``-12``, also with blanks around them).

    A sample whose text is not an integer, or does not fit into ``dtype``, is rejected.
    """

    example = "{op: number_from_text, in: cls, out: label}"

    dtype: Annotated[DALIDataType, Arg("data type of the number, integer or floating point")] = DALIDataType.INT64

    def infer(self, *specs: Spec) -> Spec:
        text = specs[0]
        if text.dtype not in (None, DALIDataType.UINT8) or text.ndim not in (None, 1):
            raise SpecError(f"takes text, uint8[?], got {text}")
        if self.dtype is DALIDataType.BOOL:
            raise SpecError("dtype must be a number's type, got BOOL")
        return Spec((), self.dtype, "")

    def cpu(self, ctx: Context, text: Batch) -> Batch:
        n, dtype = len(text), to_numpy(self.dtype)
        sizes = np.minimum(text.sizes, _MAX_TEXT)
        within = np.arange(_MAX_TEXT)
        there = within < sizes[:, None]
        at = np.where(there, text.offsets[:, None] + within, 0)
        letters = np.where(there, text.data[at] if len(text.data) else np.uint8(32), np.uint8(32))
        blank = (letters == 32) | ((letters >= 9) & (letters <= 13)) | (letters == 0)
        digit = (letters >= 48) & (letters <= 57)
        sign = (letters == 43) | (letters == 45)
        inside = ~blank
        first = inside.argmax(axis=1)
        last = _MAX_TEXT - 1 - inside[:, ::-1].argmax(axis=1)
        whole = inside == ((within >= first[:, None]) & (within <= last[:, None]))
        signed = np.take_along_axis(sign, first[:, None], axis=1)[:, 0]
        good = whole.all(axis=1) & (text.sizes <= _MAX_TEXT)
        good &= (digit | blank | (sign & (within == first[:, None]))).all(axis=1)
        count = digit.sum(axis=1)
        good &= (count > 0) & (count <= _SAFE_DIGITS)
        values = np.zeros(n, np.int64)
        for k in range(_MAX_TEXT):
            values = np.where(good & digit[:, k], values * 10 + (letters[:, k].astype(np.int64) - 48), values)
        minus = signed & (np.take_along_axis(letters, first[:, None], axis=1)[:, 0] == 45)
        values = np.where(minus, -values, values)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            good &= (values >= limits.min) & (values <= limits.max)
        for i in np.flatnonzero(~good).tolist():
            shown = bytes(text.sample(i)[:_MAX_TEXT])
            ctx.reject(i, "corrupt_data", f"{shown!r} is not an integer that {self.dtype.name} can hold")
        out = Batch.allocate(ctx.empty, np.empty((n, 0), np.int32), dtype, "", text.samples)
        out.data[:] = np.where(good, values, 0).astype(dtype)
        return out
