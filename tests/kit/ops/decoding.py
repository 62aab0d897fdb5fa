"""Call image decoders on files."""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import Reject


def batch_of(blobs: list[bytes], gap: int = 0) -> Batch:
    """Return encoded images as a batch in one read-only buffer, with ``gap`` foreign bytes before each."""
    data = np.frombuffer(b"".join(b"\xff" * gap + blob for blob in blobs), np.uint8)
    sizes = np.array([len(b) for b in blobs], np.int64)
    offsets = np.cumsum(sizes + gap) - sizes
    return Batch(data, offsets, sizes.astype(np.int32)[:, None], "", Samples.numbered(len(blobs)))


def run(op: Any, blobs: list[bytes], gap: int = 0, **context: Any) -> tuple[Batch, list[Reject]]:
    encoded = batch_of(blobs, gap)
    ctx = Context(op=op, stage="cpu", samples=encoded.samples, **context)
    return op.cpu(ctx, encoded), ctx.rejects
