"""Operator copy: copy samples to new memory."""

from __future__ import annotations

from ..base import Operator
from ..batch import Batch
from ..context import Context
from ..copies.strided import run, whole


class Copy(Operator, name="copy"):
    """Copy the samples to new memory, without gaps. Batches never change after their creation, so that this is rarely
    useful."""

    replayable = True
    example = "{op: copy, in: images, out: images}"

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        return run(ctx, whole(data), data)

    gpu = cpu
