"""Operator jitter: take every value from a random position near its own."""

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
"""Number of random draws that are reserved for each element of a sample, as in DALI."""
_THREADS = 256
_VALUES = 32  # values per thread (cuda/jitter.cu: VALUES * TURNS), or pixels of three bytes


class Jitter(Operator, name="jitter"):
    """Move every value of an image by a random number of pixels, horizontally and vertically: nDegree integers around
    0.

    Positions beyond the border are replaced by the border. DALI has this operator only on a GPU.
    """

    random = True
    layouts = ("HWC",)
    example = "{op: jitter, in: images, nDegree: 4, out: images}"

    nDegree: Annotated[int, Arg("number of possible shifts per axis: from -nDegree/2 to nDegree/2 - 1", ge=1)] = 2  # noqa: N815
    mask: Annotated[int, Arg("0: leave the image unchanged", per_sample=True)] = 1
    fill_value: Annotated[float, Arg("no effect: no position is outside", ignored="values come from inside")] = 0.0
    interp_type: Annotated[
        DALIInterpType, Arg("no effect: values move by whole pixels", ignored="values move by whole pixels")
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
            raw = np.dtype(f"u{images.dtype.itemsize}")  # values are only moved: a loop per element size is enough
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
