"""Decoder for lossy WebPs on a GPU (cuda/vp8.cu), bit-identical to libwebp.

The kernels check every file themselves. An image that they do not support, or that is damaged, is run again by the
engine with ``attempt`` 1, on the CPU, which decodes or rejects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...gpu.lane import Lane
from ...types import DALIImageType
from .. import costs
from ..costs import Costs
from ..decoder_table import NO_IMAGES, DecodeJob
from ..format import CHANNELS, FORMAT, HEIGHT, WIDTH
from ..gpu_table import GpuDecoder, GpuWork
from ..headers import encoded_bytes
from ..threaded_decode import ThreadedDecode
from . import decoder
from .format import CODE

NAME = "cuda webp"
"""Name of this decoder in reports."""
PICTURE = np.dtype(
    [(n, np.int64) for n in ("source", "size", "planes", "destination")]
    + [(n, np.int32) for n in ("width", "height", "y", "x", "shown_rows", "shown_columns", "bgr", "unused")]
)
"""Record that describes one WebP image to the kernels."""
LONGEST = 4096
"""Maximum width and height in pixels of images for this decoder: the kernel keeps a row of macroblocks in shared
memory."""
LARGEST = 1 << 22
"""Maximum number of pixels of images for this decoder: a single warp decodes an image, and the batch waits for it."""
_SOURCE = "vp8.cu"
_FILTER, _PIXELS = 128, 256
_ALIGNED = 256


class CudaWebp(GpuDecoder):
    """CUDA decoder for lossy WebPs without alpha that need no conversion, to RGB or BGR of uint8."""

    name = NAME

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        rules, headers = job.rules, job.headers
        if (
            not headers.unusual
            or rules.dtype != np.uint8
            or rules.output_type not in (DALIImageType.RGB, DALIImageType.BGR)
        ):
            return np.zeros(len(indices), np.bool_)
        rows = headers.rows[indices]
        taken: npt.NDArray[np.bool_] = (
            (rows[:, FORMAT] == CODE) & (rows[:, CHANNELS] == 3) & (headers.orientation[indices] == 1)
        )
        taken &= (rows[:, [WIDTH, HEIGHT]] <= LONGEST).all(axis=1) & (rows[:, WIDTH] * rows[:, HEIGHT] <= LARGEST)
        for k in np.flatnonzero(taken).tolist():
            taken[k] = decoder.is_lossy(encoded_bytes(job.batch, int(indices[k])))
        return taken

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> GpuWork:
        return WebpWork(indices)

    def seconds(self, job: DecodeJob, indices: I64) -> Costs:
        return costs.webp(job.headers.rows[indices, WIDTH] * job.headers.rows[indices, HEIGHT])


ROWS = (CudaWebp(),)


@dataclass(slots=True)
class WebpWork(GpuWork):
    """Work for the GPU: decoding a batch's WebPs. It runs at the same time as other work of the CUDA stream, because it
    takes long and leaves most of the GPU idle."""

    indices: I64
    _rest: Callable[[], npt.NDArray[np.int32]] | None = None

    def launch(self, job: DecodeJob, lane: Lane, files: Batch, out: Batch) -> I64:
        which, headers = self.indices, job.headers
        pictures = np.zeros(len(which), PICTURE)
        pictures["source"], pictures["size"] = files.offsets[which], files.sizes[which]
        pictures["width"], pictures["height"] = headers.width[which], headers.height[which]
        if job.anchors is not None:
            pictures["y"], pictures["x"] = job.anchors[which, 0], job.anchors[which, 1]
        pictures["shown_rows"], pictures["shown_columns"] = out.shapes[which, 0], out.shapes[which, 1]
        pictures["destination"], pictures["bgr"] = out.offsets[which], job.bgr
        self._rest = launch(lane, files.data, pictures, out.data)
        return NO_IMAGES

    def finish(self, job: DecodeJob) -> None:
        """Make later work on the CUDA stream wait until the WebPs are decoded, and have the results checked for
        errors."""
        assert self._rest is not None
        marks, which, ctx = self._rest(), self.indices, job.ctx

        def wrong() -> I64:
            found = which[np.flatnonzero(marks)]
            ctx.decoded_by(NAME, len(which) - len(found))
            return found

        ctx.check_later(wrong)


def launch(lane: Lane, files: Any, pictures: npt.NDArray[Any], out: Any) -> Callable[[], npt.NDArray[np.int32]]:
    """Enqueue the kernels that decode WebPs, at the same time as other work of ``lane``, a CUDA stream. Return a
    function that makes later work of the stream wait for these kernels. The function returns a number per image, valid
    after ``lane.synchronize()``: 0 if the image was decoded. ``pictures``: `PICTURE` records, whose offsets in scratch
    memory are filled in here."""
    macroblocks = (pictures["width"].astype(np.int64) + 15 >> 4) * (pictures["height"].astype(np.int64) + 15 >> 4)
    room = -(-macroblocks * (256 + 64 + 64 + 4) // _ALIGNED) * _ALIGNED
    pictures["planes"] = np.cumsum(room) - room
    planes = lane.empty(int(room.sum()), np.uint8)
    count = len(pictures)
    table, bad = lane.upload(pictures.view(np.uint8), np.zeros(count, np.int32))
    lane.launch_beside(_SOURCE, "vp8_decode", count, 64, files, table, planes, bad)
    lane.launch_beside(_SOURCE, "vp8_filter", count, _FILTER, table, planes, bad)
    lane.launch_beside(_SOURCE, "vp8_pixels", (16, count), _PIXELS, table, planes, bad, out)

    def rest() -> npt.NDArray[np.int32]:
        lane.join()
        marks: npt.NDArray[np.int32] = lane.download(bad)
        return marks

    return rest
