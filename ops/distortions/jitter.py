"""jitter: every value taken from a place near its own, at random."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator
from ..batch import Batch
from ..context import Context
from ..copies.strided import CUDA_TYPES
from ..copies.windows import known_layout
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIInterpType

_kernels: Any = Kernels(".jitter_cpu", __package__)

_SKIP = 257
"""How many draws apart elements begin in DALI."""
_THREADS = 256
_VALUES = 32  # that a thread moves (cuda/jitter.cu: VALUES * TURNS), or pixels of three bytes


class Jitter(Operator, name="jitter"):
    """Move every value of an image by a random number of pixels, across and down: nDegree whole numbers around 0.

    Places beyond the border count as the border. DALI has it on a GPU only.
    """

    random = True
    layouts = ("HWC",)
    example = "{op: jitter, in: images, nDegree: 4, out: images}"

    nDegree: Annotated[int, Arg("how many places: from -nDegree/2 up to, but not, nDegree/2", ge=1)] = 2  # noqa: N815
    mask: Annotated[int, Arg("0 leaves the image as it is", per_sample=True)] = 1
    fill_value: Annotated[float, Arg("of no use: no place is outside", ignored="values come from inside")] = 0.0
    interp_type: Annotated[
        DALIInterpType, Arg("of no use: values move by whole pixels", ignored="values move by whole pixels")
    ] = DALIInterpType.INTERP_NN

    def check(self) -> None:
        if self.nDegree > 1 << 20:
            raise SpecError(f"nDegree must be at most {1 << 20}, got {self.nDegree}")

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        streams = ctx.streams()
        skip = _SKIP if ctx.rng == "dali" else 2
        reach = np.where(ctx.arg("mask", np.int64) != 0, self.nDegree, 1)
        sizes = images.shapes.astype(np.int64)
        out = Batch.allocate(ctx.empty, images.shapes, images.dtype, images.layout, images.samples)
        if ctx.stage == "cpu":
            low, high = 0, 0
            if len(images):
                low, high = int(images.offsets.min()), int((images.offsets + images.sizes).max())
            raw = np.dtype(f"u{images.dtype.itemsize}")  # values only move: a loop for each size is enough
            _kernels.jitter(
                streams.handle, streams.sequence, skip, images.data[low:high].view(raw), images.offsets - low,
                sizes, reach, out.data.view(raw), out.offsets,
            )  # fmt: skip
            return out
        pixels = (
            images.dtype == np.uint8
            and skip == 2
            and not (streams.low or streams.phase)
            and bool((sizes[:, 2] == 3).all())
        )
        counts = sizes[:, 0] * sizes[:, 1] if pixels else sizes.prod(axis=1)
        tiles = -(-int(counts.max(initial=0)) // (_THREADS * _VALUES))
        if not tiles:
            return out
        sequence, base, to, extent, far = ctx.device.upload(streams.sequence, images.offsets, out.offsets, sizes, reach)
        if pixels:
            power = (self.nDegree & (self.nDegree - 1)) == 0
            ctx.device.launch(
                "jitter.cu", f"jitter_pixels<{'true' if power else 'false'}>", tiles * len(images), _THREADS,
                streams.start[0], sequence, images.data, base, extent, np.int32(tiles), far, out.data, to,
            )  # fmt: skip
        else:
            ctx.device.launch(
                "jitter.cu", f"jitter<{CUDA_TYPES[images.dtype]}>", tiles * len(images), _THREADS,
                *streams.start, sequence, np.int32(skip), images.data, base, extent, np.int32(tiles), far, out.data,
                to,
            )  # fmt: skip
        return out

    gpu = cpu
