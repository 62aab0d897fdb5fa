"""copy: the same samples in memory of their own."""

from __future__ import annotations

from ..base import Operator
from ..batch import Batch
from ..context import Context
from ..copies.strided import run, whole


class Copy(Operator, name="copy"):
    """Copy the samples, packed. Batches never change once made, so that this is rarely of use."""

    replayable = True
    example = "{op: copy, in: images, out: images}"

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        return run(ctx, whole(data), data)

    gpu = cpu
