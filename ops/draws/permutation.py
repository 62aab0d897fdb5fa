"""Operator batch_permutation: indices of a batch's samples in random order, for permute_batch."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..kernels import Kernels
from ..streams import U32, Streams
from ..types import DALIDataType

_loops: Any = Kernels(".permutation_cpu", __package__)
_philox: Any = Kernels(".philox_cpu", __package__)


def _drawn(stream: Streams, count: int) -> U32:
    """Return the first ``count`` random draws of ``stream``, which is a single random stream."""
    out = np.empty((1, count), np.uint32)
    _philox.element_draws(stream.handle, stream.sequence, np.ones(1, np.int64), count, out)
    found: U32 = out[0]
    return found


class BatchPermutation(Operator, name="batch_permutation"):
    """Draw random indices into the batch, one per sample: each index once, in random order.

    They come from the random stream of the batch's first sample; with ``rng: dali`` from one generator for the batch,
    as in DALI. The result depends on which samples share a batch.
    """

    inputs = (0, 0)
    random = True
    per_batch = is_trivial = True
    example = "{op: batch_permutation, out: order}"

    allow_repetitions: Annotated[
        bool, Arg("draw each index separately, so that some occur several times and others never")
    ] = False
    no_fixed_points: Annotated[bool, Arg("no sample keeps its own index, if there are at least two")] = False

    def infer(self, *specs: Spec) -> Spec:
        return Spec((), DALIDataType.INT32)

    def cpu(self, ctx: Context) -> Batch:
        samples = ctx.samples
        n = len(samples)
        first = ctx.streams().take(slice(0, 1))
        if ctx.rng == "dali" and n and ctx.state is None:
            first = Streams(first.key, (samples.position[:1] - samples.slot[:1]).astype(np.uint64))
        places = np.empty(n, np.int64)
        spare = n + 64
        while n and not _loops.permuted(_drawn(first, spare), self._kind, places):
            spare *= 2  # draws that would favour some indices are repeated
        return Batch.from_dense(samples.slot[places].astype(np.int32), "", samples)

    @property
    def _kind(self) -> int:
        return 2 * self.allow_repetitions + self.no_fixed_points
