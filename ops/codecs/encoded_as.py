"""encoded_as: is a file what it should become already, so that it need not be decoded and encoded?"""

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
from .on_host import Rules, read_headers


class EncodedAs(Operator, name="encoded_as"):
    """Whether an encoded image has a format and a size already, by its header alone.

    The output is one boolean a sample, for ``if:``. A file that is no image, or has a damaged header, is
    False: its decoder says what is wrong.
    """

    example = "{op: encoded_as, in: files, format: jpeg, shorter: 256, out: done}"

    format: Annotated[Format, Arg("the file format")]
    shorter: Annotated[int | None, Arg("pixels of the shorter side; any size where it is not given", ge=1)] = None

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        return Spec((), DALIDataType.BOOL, "")

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        headers = read_headers(replace(ctx, rejects=[]), encoded, Rules(max_pixels=2**62))
        formats = [headers.others[i].format if i in headers.others else "jpeg" for i in range(len(encoded))]
        same = headers.good & (np.array(formats, object) == self.format)
        if self.shorter is not None:
            same &= np.minimum(headers.height, headers.width) == self.shorter
        return Batch.from_dense(same.astype(np.bool_), "", encoded.samples)
