"""Costs of decoding, estimated from headers and file sizes, and the rule that keeps large images from delaying a
launch.

A GPU decodes WebP's bool-coded data and a deflated or LZW-packed stream serially: one warp per image, many times slower
than a core of the CPU, and the launch ends with its slowest image. CPU threads decode such an image to the same bits.
`stragglers` selects the images with which the launch as a whole ends sooner if CPU threads decode them.

All constants that decide which side decodes an image are here. Measured on an H200 and its host (16 cores), by
``benchmarks/data/webp_gpu.py``, ``png_on_gpu.py``, ``tiff_on_gpu.py`` and ``decoder_ceilings.py``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..batch import I64

Seconds: TypeAlias = npt.NDArray[np.floating[Any]]
Costs: TypeAlias = tuple[Seconds, Seconds]
"""Seconds per image, [N]: on one warp of a GPU, on one thread of the CPU."""

WEBP_GPU_PIXEL, WEBP_CPU_PIXEL = 260e-9, 13e-9
"""Seconds per pixel of a lossy WebP: 3.84 megapixels take a warp 1 s and libwebp 50 ms."""
INFLATE_GPU_BYTE, INFLATE_CPU_BYTE = 33e-9, 2.5e-9
"""Seconds per deflated byte: a warp inflates 30 MB/s, libdeflate 6.5 MB in 16 ms."""
UNPACK_GPU_BYTE, UNPACK_CPU_BYTE = 12e-9, 3e-9
"""Seconds per byte of rows that a strip or tile of a TIFF unpacks to: a warp makes 8 MB in 0.1 s."""
ROWS_CPU_BYTE = 1e-9
"""Seconds per sample for undoing the filters of a PNG and storing its pixels, on the CPU."""
GPU_LAUNCHES, CPU_IMAGE = 0.3e-3, 0.05e-3
"""Seconds for launching kernels of these kinds at all; seconds of a thread per image, for its task and its copy."""
LAUNCHES = 4
"""Launches in flight: while one waits for its slowest image, the others use the GPU."""
THREADS_SHARE = 0.5
"""Share of the threads' time that one launch may use; the other launches and readers need the rest."""
IMAGE = 4e-6
"""Seconds that a GPU takes per image that it decodes in parallel; finishing sooner than these images gains nothing."""


def webp(pixels: I64) -> Costs:
    """Return the costs of lossy WebPs with this many ``pixels``."""
    return pixels * WEBP_GPU_PIXEL, pixels * WEBP_CPU_PIXEL + CPU_IMAGE


def deflated(nbytes: I64, samples: I64) -> Costs:
    """Return the costs of PNGs whose files of ``nbytes`` hold this many ``samples``."""
    return nbytes * INFLATE_GPU_BYTE, nbytes * INFLATE_CPU_BYTE + samples * ROWS_CPU_BYTE + CPU_IMAGE


def packed(largest: I64, whole: I64) -> Costs:
    """Return the costs of TIFFs whose largest strip unpacks to ``largest`` bytes, and all strips together to
    ``whole``."""
    return largest * UNPACK_GPU_BYTE, whole * UNPACK_CPU_BYTE + CPU_IMAGE


def stragglers(gpu: Seconds, cpu: Seconds, others: int, threads: int) -> npt.NDArray[np.bool_]:
    """Return which images CPU threads should decode, given the seconds that each takes on a warp of the ``gpu`` and on
    a thread of the ``cpu``; ``others`` images of the launch are decoded in parallel.

    With the k slowest images on the CPU, the launch takes the time of the slowest remaining one, of which `LAUNCHES`
    overlap, or of the CPU, whichever is longer, and at least the time of the ``others``. The smallest k with the
    shortest time is chosen: without trials, by the launch's own headers alone."""
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
"""The rule in words, shown in plans."""
