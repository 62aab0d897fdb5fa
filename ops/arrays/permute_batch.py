"""Operator permute_batch: reorder the samples of a batch."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError


class PermuteBatch(Operator, name="permute_batch"):
    """Reorder samples: sample i of the output has the data of sample indices[i] of the batch. Nothing is copied.

    A sample whose source was dropped earlier is also dropped.
    """

    per_batch = True
    example = "{op: permute_batch, in: images, indices: $order, out: shuffled}"

    indices: Annotated[
        tuple[int, ...], Arg("indices in the batch, one per sample", per_sample=True, required=True)
    ] = ()

    def check(self) -> None:
        if not self.is_set("indices"):
            raise SpecError("needs indices: one index in the batch for each sample")

    def infer(self, *specs: Spec) -> Spec:
        shape = specs[0].shape
        return Spec(None if shape is None else (None,) * len(shape), specs[0].dtype, specs[0].layout)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        slots = data.samples.slot
        if "indices" in ctx.args:
            lists, counts = ctx.lists("indices", np.int64)
            for i in np.flatnonzero(counts != 1).tolist():
                ctx.reject(i, "bad_argument", f"indices as an input must have one number per sample, got {counts[i]}")
            wanted = np.where(counts == 1, lists[:, 0], slots) if lists.shape[1] else slots
        else:
            table = np.array(self.indices, np.int64)
            wanted = np.where(slots < len(table), table[np.minimum(slots, len(table) - 1)], -1)
        there = int(slots.max(initial=-1)) + 1
        place = np.full(there + 1, -1, np.int64)  # the last entry stands for all missing samples
        place[slots] = np.arange(len(slots))
        source = place[np.where((wanted >= 0) & (wanted < there), wanted, there)]
        for i in np.flatnonzero(source < 0).tolist():
            ctx.reject(i, "bad_argument", f"takes the data of sample {wanted[i]} of the batch, which does not exist")
        return data.take(np.maximum(source, 0), data.samples)

    gpu = cpu
