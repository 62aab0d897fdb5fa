"""Scores of decoded images: perceptual hashes, sharpness, entropy, brightness, saturation, uniform borders.

CPU and GPU results are equal to the bit: sums are integers, and the few operations on floats are rounded alike.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.windows import known_layout
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_loops: Any = Kernels(".image_scores_cpu", __package__)

Score = Literal["phash", "dhash", "sharpness", "entropy", "brightness", "saturation", "border"]
SCORES: tuple[Score, ...] = ("phash", "dhash", "sharpness", "entropy", "brightness", "saturation", "border")
"""Names of all scores. A score's index here is its bit in the mask that the CPU loop and the kernels take."""
_HASHES = ("phash", "dhash")
_CELLS = 32 * 32 + 8 * 9
"""Number of gray cells computed per image, as in cuda/scores.cu: 32 x 32 for phash, then 8 x 9 for dhash."""
_PARTS = 264
"""Number of sums that a block of GPU threads computes for each strip of an image, as in cuda/scores.cu."""
_STRIP = 1 << 16
"""Number of pixels in a strip, the part of an image that one thread block processes. An image gets at most
`_MAX_STRIPS` strips."""
_MAX_STRIPS = 64


class ImageScores(Operator, name="image_scores"):
    """Score uint8 images of 1 or 3 channels (RGB) for curation: an output per entry of ``scores``, one number each.

    All but ``saturation`` are computed from the gray image, as Pillow's convert("L") makes it:
    ``(19595 R + 38470 G + 7471 B + 32768) >> 16``.

    - ``phash`` (uint64): 64 bits that say which of the lowest 8 x 8 coefficients of the DCT-II of the gray image,
      averaged over 32 x 32 cells, are above their median. Equal to imagehash.phash for an image of 32 x 32 pixels; for
      others, imagehash resizes by Lanczos instead of averaging. Coefficients that are zero (flat and symmetric images)
      count as zero here, whereas imagehash compares the rounding errors of its floats.
    - ``dhash`` (uint64): 64 bits that say which of 8 x 9 cells are brighter than their left neighbours, as
      imagehash.dhash.
    - ``sharpness`` (float): variance of the Laplacian, as cv2.Laplacian(gray, cv2.CV_64F).var().
    - ``entropy`` (float): entropy of the histogram of 256 gray levels, in bits (0 to 8).
    - ``brightness`` (float): mean gray level, 0 to 255.
    - ``saturation`` (float): mean of HSV's S, ``255 (max - min) / max`` rounded half up, 0 to 255.
    - ``border`` (float): share of the area (0 to 1) in uniform rows and columns at the edges: those at the top and left
      whose gray levels are within ``tolerance`` of the first pixel's, those at the bottom and right of the last
      pixel's; 1 for a blank image.

    The bits of a hash are stored row by row, from the most significant one: ``f"{value:016x}"`` is imagehash's text.
    """

    layouts = ("HWC",)
    replayable = True
    example = "{op: image_scores, in: images, scores: [phash, sharpness, entropy], out: [phash, sharpness, entropy]}"

    scores: Annotated[tuple[Score, ...], Arg("scores to compute, one output each, in this order")]
    tolerance: Annotated[int, Arg("gray levels by which pixels of a uniform border may differ", ge=0, le=255)] = 10

    @property
    def num_outputs(self) -> int:
        return len(self.scores)

    def check(self) -> None:
        if not self.scores:
            raise SpecError(f"scores is empty; choose from {', '.join(SCORES)}")
        twice = sorted({s for s in self.scores if self.scores.count(s) > 1})
        if twice:
            raise SpecError(f"scores names {', '.join(twice)} twice; each score has one output")

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        if data.shape is not None and data.shape[-1] not in (None, 1, 3):
            raise SpecError(f"takes images of 1 or 3 channels, got {data}")
        return tuple(Spec((), DALIDataType.UINT64 if s in _HASHES else DALIDataType.FLOAT) for s in self.scores)

    def cpu(self, ctx: Context, images: Batch) -> tuple[Batch, ...]:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        sizes = images.shapes.astype(np.int64)
        wrong = (sizes[:, 2] != 1) & (sizes[:, 2] != 3)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_shape", f"takes 1 or 3 channels, got {images.shapes[i, 2]}")
        sizes[wrong] = 0
        number = np.empty((len(images), 0), np.int32)
        out = {
            s: Batch.allocate(ctx.empty, number, np.uint64 if s in _HASHES else np.float32, "", images.samples)
            for s in self.scores
        }
        wanted = np.int32(sum(1 << SCORES.index(s) for s in self.scores))
        unused = {t: ctx.empty(0, t) for t in (np.uint64, np.float32)}
        results = [out[s].data if s in out else unused[np.uint64 if s in _HASHES else np.float32] for s in SCORES]
        if ctx.stage == "cpu":
            base = np.ascontiguousarray(images.offsets)
            _loops.image_scores(images.data, base, sizes, wanted, np.int32(self.tolerance), *tables(), *results)
        elif len(images):
            self._launch(ctx, images, sizes, wanted, results)
        return tuple(out[s] for s in self.scores)

    gpu = cpu

    def _launch(
        self, ctx: Context, images: Batch, sizes: npt.NDArray[np.int64], wanted: np.int32, results: list[Any]
    ) -> None:
        lane, count = ctx.device, len(images)
        base, extent, cosines, logs = lane.upload(images.offsets, sizes, *tables())
        if wanted & 3:
            cells = lane.empty(count * _CELLS, np.uint8)
            lane.launch("scores.cu", "gray_cells", (_CELLS // 8, count), 256, images.data, base, extent, wanted, cells)
            lane.launch("scores.cu", "hashes", count, 64, cells, cosines, wanted, *results[:2])
        if wanted & ~3:
            largest = int(sizes[:, :2].prod(axis=1).max())
            strips = min(_MAX_STRIPS, max(1, -(-largest // _STRIP)))
            parts = lane.empty(count * strips * _PARTS, np.int64)
            lane.launch("scores.cu", "image_sums", (strips, count), 256, images.data, base, extent, wanted,
                        np.int32(self.tolerance), parts)  # fmt: skip
            lane.launch("scores.cu", "scores_of_sums", count, 256, parts, np.int32(strips), extent, wanted, logs,
                        *results[2:])  # fmt: skip


@cache
def tables() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return two tables of constants. int32[8, 32]: cosines of the DCT-II in units of 2^-22. int32[1025]: log2(1 + k /
    1024) in units of 2^-24.

    With 22 bits the sums of 32 x 32 products of two cosines and a gray level fit into 63 bits.
    """
    k, x = np.arange(8)[:, None], np.arange(32)
    cosines = np.rint(np.cos(np.pi * k * (2 * x + 1) / 64) * (1 << 22))
    logs = np.rint(np.log2(1 + np.arange(1025) / 1024) * (1 << 24))
    return cosines.astype(np.int32), logs.astype(np.int32)
