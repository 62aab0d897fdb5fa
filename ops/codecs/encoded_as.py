"""Operator encoded_as: tells whether a file already has the requested format and size, so that it need not be
re-encoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..types import DALIDataType
from .decoders import check_encoded
from .encoders import Format
from .format import FORMAT
from .formats import BY_NAME
from .headers import Rules, read_headers


class EncodedAs(Operator, name="encoded_as"):
    """Whether encoded images have a given format and size already, by their headers alone. The output is one boolean
    per sample, for ``if:``. It is False for a file that is not an image, or has a damaged header; the decoder reports
    such errors.
    """

    example = "{op: encoded_as, in: files, format: jpeg, shorter: 256, out: done}"

    format: Annotated[Format | None, Arg("the file format; any if not given")] = None
    shorter: Annotated[int | None, Arg("pixels of the shorter side; any size if not given", ge=1)] = None
    or_smaller: Annotated[bool, Arg("also accept images whose shorter side is below `shorter`")] = False

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        return Spec((), DALIDataType.BOOL, "")

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        headers = read_headers(replace(ctx, rejects=[]), encoded, Rules(max_pixels=2**62))
        same = headers.good.copy()
        if self.format is not None:
            same &= headers.rows[:, FORMAT] == BY_NAME[self.format].code
        if self.shorter is not None:
            side = np.minimum(headers.height, headers.width)
            same &= side <= self.shorter if self.or_smaller else side == self.shorter
        return Batch.from_dense(same.astype(np.bool_), "", encoded.samples)
