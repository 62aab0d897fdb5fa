"""Decode FLAC files on the GPU (cuda/audio/flac.cu): one thread per frame.

Files that are unusual in any way are left to the CPU, which alone reports errors in files. So samples and error
messages do not depend on where a file was decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..batch import I64, Batch, Samples
from ..context import Context
from ..kernels import Kernels

_plan: Any = Kernels(".flac_plan_cpu", __package__)
_wav: Any = Kernels(".wav_cpu", __package__)

_SOURCE = "audio/flac.cu"
_THREADS = 32
"""Number of threads per block of the CUDA kernel `decode`: few, so that a batch's frames spread over the whole GPU."""
_SEARCHED = 256 * 16
"""Number of bytes in which one block of the CUDA kernel `find` searches for frame headers."""
_NOWHERE = np.iinfo(np.int32).max
MEMORY = 8
"""Bytes of working memory on the device per audio sample, in addition to the output."""


def plain(encoded: Batch, rows: I64) -> I64:
    """Return one row of parameters per file, [N, FIELDS], with zeros for files that the GPU does not decode. Also write
    frames, channels and sampling rates of the GPU's files to ``rows``, in the columns of `wav_cpu.walk`."""
    files = np.empty((len(encoded), _plan.FIELDS), np.int64)
    _plan.plain(encoded.data, np.ascontiguousarray(encoded.offsets), encoded.sizes, rows, files)
    return files


def decode(ctx: Context, encoded: Batch, files: I64) -> tuple[Batch, I64]:
    """Decode on the GPU the FLAC files in ``encoded``, on the device, whose row in ``files`` (from `plain`) is not
    zeros. Return their audio samples in the form of plain WAV data, and its description in the columns of
    `wav_cpu.walk`. The CPU decodes files again that the GPU turns out not to support."""
    which = np.flatnonzero(files[:, _plan.TOTAL])
    taken = files[which]
    taken[:, _plan.BASE] = encoded.offsets[which]
    numbers = taken[:, _plan.TOTAL] * taken[:, _plan.WIDTH]
    taken[:, _plan.WIDE] = np.where(taken[:, _plan.DEPTH] <= 16, 16, 32)
    nbytes = numbers * taken[:, _plan.WIDE] // 8
    room = (nbytes + 15) // 16 * 16
    taken[:, _plan.OUT] = np.cumsum(room) - room
    fours = (numbers + 3) // 4 * 4
    taken[:, _plan.WORK] = np.cumsum(fours) - fours
    frames = -(-taken[:, _plan.TOTAL] // taken[:, _plan.BLOCK])
    taken[:, _plan.SLOT] = np.cumsum(frames) - frames
    count = int(frames.sum())
    lane = ctx.device
    rows, owners, starts, bad = lane.upload(
        taken, np.repeat(np.arange(len(which), dtype=np.int32), frames), np.full(count, _NOWHERE, np.int32),
        np.zeros(len(which), np.int32),
    )  # fmt: skip
    work, out = lane.empty(int(fours.sum()), np.int32), lane.empty(int(room.sum()), np.uint8)
    tiles = -(-int(taken[:, _plan.SIZE].max()) // _SEARCHED)
    lane.launch(_SOURCE, "find", (tiles, len(which)), 256, encoded.data, rows, starts)
    lane.launch(_SOURCE, "decode", -(-count // _THREADS), _THREADS, encoded.data, rows, owners, np.int32(count), starts,
                work, bad)  # fmt: skip
    lane.launch(_SOURCE, "join", count, 256, encoded.data, rows, owners, starts, work, out)
    marks = lane.download(bad)

    def odd() -> I64:
        wrong = which[np.flatnonzero(marks)]
        ctx.decoded_by("cuda flac", len(which) - len(wrong))
        return wrong

    ctx.check_later(odd)
    places, sizes = np.zeros(len(files), np.int64), np.zeros((len(files), 1), np.int32)
    places[which], sizes[which, 0] = taken[:, _plan.OUT], np.minimum(nbytes, np.iinfo(np.int32).max)
    found = np.zeros((len(files), _wav.FIELDS), np.int64)
    found[which, _wav.FRAMES], found[which, _wav.CHANNELS] = taken[:, _plan.TOTAL], taken[:, _plan.WIDTH]
    found[which, _wav.KIND] = np.where(taken[:, _plan.WIDE] == 16, _wav.S16, _wav.S32)
    return Batch(out, places, sizes, "", Samples.numbered(len(files))), found
