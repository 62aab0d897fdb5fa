"""Costs of decoding, estimated from headers and file sizes, and the rule that keeps large images from delaying a
launch.

A GPU decodes WebP's bool-coded data and a deflated or LZW-packed stream serially: one warp per image, many times slower
than a core of the CPU, and the launch ends with its slowest image. CPU threads decode such an image to the same bits.
`stragglers` selects the images with which the launch as a whole ends sooner if CPU threads decode them.

All constants that decide between GPU and CPU are here. Measured on an H200 and its host (16 cores), by
``benchmarks/data/webp_gpu.py``, ``png_on_gpu.py`` and ``tiff_on_gpu.py``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..batch import I64

Seconds: TypeAlias = npt.NDArray[np.floating[Any]]
Costs: TypeAlias = tuple[Seconds, Seconds]
"""Seconds to decode each image, as two arrays [N]: on one warp of a GPU, and on one CPU thread."""

WEBP_GPU_PIXEL, WEBP_CPU_PIXEL = 260e-9, 13e-9
"""Seconds to decode one pixel of a lossy WebP, on a warp of a GPU and on a CPU thread. Measured: 3.84 megapixels take a
warp 1 s and libwebp 50 ms."""
INFLATE_GPU_BYTE, INFLATE_CPU_BYTE = 33e-9, 2.5e-9
"""Seconds to inflate one byte of deflate data, on a warp of a GPU and on a CPU thread. Measured: a warp inflates 30
MB/s, libdeflate 6.5 MB in 16 ms."""
UNPACK_GPU_BYTE, UNPACK_CPU_BYTE = 12e-9, 3e-9
"""Seconds to unpack one byte of the pixel rows of a TIFF's strip or tile, on a warp of a GPU and on a CPU thread.
Measured: a warp unpacks to 8 MB in 0.1 s."""
ROWS_CPU_BYTE = 1e-9
"""Seconds that a CPU thread needs per sample of a PNG (one channel of a pixel), to undo the filter and store it."""
GPU_LAUNCHES, CPU_IMAGE = 0.3e-3, 0.05e-3
"""Additional seconds of decoding: on a GPU, for each launch of a decoder's kernels; on a CPU thread, for each image, to
start a task and copy the result."""
LAUNCHES = 4
"""Number of batches that a GPU decodes at a time. While one batch waits for its slowest image, the others use the
GPU."""
THREADS_SHARE = 0.5
"""Fraction of the CPU threads' time that one batch may use; other batches and readers need the rest."""
IMAGE = 4e-6
"""Seconds per image that a GPU decodes in parallel with others. Moving a slow image to the CPU helps only if this image
takes the GPU longer than all parallel ones together."""


def webp(pixels: I64) -> Costs:
    """Return the seconds to decode lossy WebPs with this many ``pixels``, on a GPU warp and on a CPU thread."""
    return pixels * WEBP_GPU_PIXEL, pixels * WEBP_CPU_PIXEL + CPU_IMAGE


def deflated(nbytes: I64, samples: I64) -> Costs:
    """Return the seconds to decode PNGs, on a GPU warp and on a CPU thread. ``nbytes``: sizes of the files;
    ``samples``: pixels times channels."""
    return nbytes * INFLATE_GPU_BYTE, nbytes * INFLATE_CPU_BYTE + samples * ROWS_CPU_BYTE + CPU_IMAGE


def packed(largest: I64, whole: I64) -> Costs:
    """Return the seconds to decode TIFFs, on a GPU warp and on a CPU thread. ``largest``: unpacked bytes of each
    file's largest strip, which limits the warp. ``whole``: unpacked bytes of all strips, which the thread unpacks
    one by one."""
    return largest * UNPACK_GPU_BYTE, whole * UNPACK_CPU_BYTE + CPU_IMAGE


def stragglers(gpu: Seconds, cpu: Seconds, others: int, threads: int) -> npt.NDArray[np.bool_]:
    """Return which images CPU ``threads`` should decode instead of a GPU, so that a batch ends soonest, bool[N].
    ``gpu``, ``cpu``: seconds that each image takes on a GPU warp and on a CPU thread. ``others``: number of further
    images, which the GPU decodes in parallel.

    The k slowest images go to the CPU. The batch then takes the longest of three times: of the slowest image left on
    the GPU (divided by `LAUNCHES`, because batches overlap), of the CPU, and of the ``others``. The k with the shortest
    time is chosen, the smallest if several are equal."""
    order = np.argsort(-gpu, kind="stable")
    slowest = np.append(gpu[order] / LAUNCHES + GPU_LAUNCHES, 0.0)
    work = np.concatenate([[0.0], np.cumsum(cpu[order]) / (threads * THREADS_SHARE)])
    longest = np.concatenate([[0.0], np.maximum.accumulate(cpu[order])])
    time = np.maximum(np.maximum(slowest, np.maximum(work, longest)), others * IMAGE)
    moved = np.zeros(len(gpu), np.bool_)
    moved[order[: int(np.argmin(time))]] = True
    return moved


RULE = (
    "of WebP, PNG and TIFF, which a GPU decodes serially, CPU threads decode the largest at the same time: as many as "
    "make the launch end sooner, by headers and file sizes"
)
"""Text for `dali-run plan`: which images CPU threads decode instead of the GPU."""
