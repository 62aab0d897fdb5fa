"""Operator split_samples: turn one sample into several, each with a key of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I32, I64, Batch, Samples, elements
from ..context import Context
from ..errors import JobError, SpecError
from ..types import DALIDataType

Partial = Literal["keep", "drop"]


class SplitSamples(Operator, name="split_samples"):
    """Turn every sample into several, in order: frames or clips of a video, windows of a recording, tiles of an image.

    The input is cut along its first axis. Without ``size`` each new sample is one item of that axis, and the axis is
    removed: the frames of FHWC are HWC. With ``size`` each new sample is a window of ``size`` items; the next window
    begins ``step`` items later.

    All later steps process the new samples one by one; random operators draw for each, and each is written or rejected
    separately. Number 3 of ``class/a.mp4`` has the key ``class/a-000003.mp4``. Results of earlier steps are repeated
    for every new sample that uses them. Nothing is copied. A sample that yields no new samples is rejected. Several
    inputs are cut together, each along its first axis: frames and their times, tiles and their positions.

    The operator works in jobs (specs with ``write:``), once, outside of conditionals; steps before it run on the CPU.
    Shards by ``samples`` are cut by whole inputs: ``samples: 100`` are the new samples of 100 inputs. ``rng: dali`` and
    ``on_error: replace``, with which a sample's result depends on its batch, are refused.
    """

    inputs = (1, 16)
    example = "{op: split_samples, in: video, size: 16, out: clips}"

    size: Annotated[int | None, Arg("number of items per new sample; by default one, without the first axis", ge=1)] = (
        None
    )
    step: Annotated[int | None, Arg("number of items from one new sample to the next; by default size, or 1", ge=1)] = (
        None
    )
    partial: Annotated[Partial, Arg("drop or keep a last window with fewer items")] = "drop"
    numbered: Annotated[bool, Arg("add an output: the number of the new sample within its source, from 0 (int32)")] = (
        False
    )

    @property
    def num_outputs(self) -> int:
        return max(1, self.num_inputs) + self.numbered

    def check(self) -> None:
        if self.partial == "keep" and self.size is None:
            raise SpecError("partial needs windows of several items: give size")

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return (*map(self._part, specs), Spec((), DALIDataType.INT32, ""))[: self.num_outputs]

    def _part(self, data: Spec) -> Spec:
        if data.ndim == 0:
            raise SpecError(f"takes tensors of one dimension at least, got {data}")
        if data.layout and data.layout[0] in "HWC":
            raise SpecError(f"cuts along the first axis, which is {data.layout[0]} of an image here ({data}); give it "
                            "sequences, cut it with tiles, or transpose first")  # fmt: skip
        shape, layout = data.shape, data.layout
        if self.size is None:
            shape, layout = None if shape is None else shape[1:], layout[1:]
        elif shape is not None:
            shape = (self.size if self.partial == "drop" else None, *shape[1:])
        return Spec(shape, data.dtype, layout)

    def cpu(self, ctx: Context, *data: Batch) -> Batch:
        raise JobError("turns one sample into several, which only jobs support: run it from a spec with `write:`")

    def counts(self, data: Batch) -> I64:
        """Return the number of new samples into which each sample of ``data`` is split, int64[N]."""
        items, size = data.shapes[:, 0].astype(np.int64), self.size or 1
        step = self.step or size
        whole: I64 = np.where(items >= size, (items - size) // step + 1, 0)
        if self.partial == "drop":
            return whole
        reaching = np.maximum(-(-(items - size) // step), 0) + 1  # the last window reaches the end
        found: I64 = np.minimum(reaching, -(-items // step))  # if steps leave gaps, windows must begin before the end
        return found

    def parts(self, inputs: Sequence[Batch], owner: I64, part: I32, samples: Samples) -> tuple[Batch, ...]:
        """Return views of M new samples of each input: new sample k is item ``part[k]`` of sample ``owner[k]``.
        ``samples``: identities of the new samples."""
        made = [self._views(data, owner, part, samples) for data in inputs]
        return (*made, Batch.from_dense(part.copy(), "", samples))[: len(inputs) + self.numbered]

    def _views(self, data: Batch, owner: I64, part: I32, samples: Samples) -> Batch:
        size, one = self.size or 1, elements(data.shapes[:, 1:])
        first = part.astype(np.int64) * (self.step or size)
        offsets, shapes = data.offsets[owner] + first * one[owner], data.shapes[owner, 1:]
        layout = data.layout[1:]
        if self.size is not None:
            length = np.minimum(size, data.shapes[owner, 0] - first)
            shapes, layout = np.column_stack([length, shapes]), data.layout
        return Batch(data.data, offsets, shapes.astype(np.int32), layout, samples)
