"""Files that a decoder must reject."""

from __future__ import annotations

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.context import Context
from dali_run.ops.errors import Reject

SMALL = 4 * 4 * 3
"""Number of elements of the images in which the text bombs are hidden; other bombs get no output."""


def refused(blob: bytes, **arguments: object) -> Reject:
    data = np.frombuffer(blob, np.uint8)
    encoded = Batch(data, np.zeros(1, np.int64), np.array([[len(blob)]], np.int32), "", Samples.numbered(1))
    op = Image(**arguments)  # type: ignore[arg-type]
    ctx = Context(op=op, stage="cpu", samples=encoded.samples)
    out = op.cpu(ctx, encoded)
    assert int(out.sizes[0]) <= SMALL
    (reject,) = ctx.rejects
    return reject
