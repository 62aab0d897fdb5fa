"""TIFFs of a batch, by our decoder (`decoder_cpu`): straight into an output, or as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I32, I64, Batch
from ...kernels import Kernels
from ...types import DALIImageType
from ..formats import Header
from ..pixels import Pixels
from ..png import libdeflate

_decoder: Any = Kernels(".decoder_cpu", __package__)
_directory: Any = Kernels(".directory_cpu", __package__)


def is_straight(header: Header, output_type: DALIImageType) -> bool:
    """The decoder may make what is wanted of a file without a step between; `are_plain` tells whether it will."""
    if header.format != "tiff" or header.bits != 8 or header.channels > 4:
        return False
    return output_type in _STRAIGHT or (output_type is DALIImageType.GRAY and header.channels < 3)


_STRAIGHT = (DALIImageType.RGB, DALIImageType.BGR, DALIImageType.ANY_DATA)


def are_plain(batch: Batch, which: I64) -> npt.NDArray[np.bool_]:
    """Which of the images are of the kinds that the decoder takes, by their directories: of these every decoder makes
    pixels of the size and channels that the header says, or none."""
    return _plain(batch.data, batch.offsets[which], batch.shapes[which, 0].astype(np.int64))


def _plain(encoded: Any, offsets: I64, sizes: I64) -> npt.NDArray[np.bool_]:
    plain = np.empty(len(sizes), np.bool_)
    _directory.are_plain(_readonly(encoded), offsets, sizes, plain)
    return plain


def _readonly(encoded: Any) -> Any:
    encoded = encoded.view()
    encoded.flags.writeable = False  # one type for Numba, whether the bytes are mapped read-only or not
    return encoded


def decode_into(
    batch: Batch, which: I64, windows: I64, channels: I64, bgr: bool, out: Any, origins: I64, pitches: I64
) -> I32:
    """`decoder_cpu.decode_images` for the images ``which`` of ``batch``; the status of each, int32. The other arrays
    have a row for each of them."""
    sizes = batch.shapes[which, 0].astype(np.int64)
    return _decoded(batch.data, batch.offsets[which], sizes, windows, channels, bgr, out, origins, pitches)


def stored(data: memoryview, header: Header) -> Pixels | None:
    """(H, W, C) uint8 as it is stored; None where it is one for others to judge."""
    encoded, one = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
    if not is_straight(header, DALIImageType.ANY_DATA) or not _plain(encoded, one, one + len(encoded))[0]:
        return None
    pixels = np.empty((header.height, header.width, header.channels), np.uint8)
    window = np.array([[0, 0, header.height, header.width]], np.int64)
    pitch = one + header.width * header.channels
    status = _decoded(
        encoded, one, one + len(encoded), window, one + header.channels, False, pixels.reshape(-1), one, pitch
    )
    return pixels if status[0] == _decoder.DONE else None


def _decoded(encoded: Any, offsets: I64, sizes: I64, *rest: Any) -> I32:
    status = np.empty(len(sizes), np.int32)
    functions = libdeflate.functions()
    if functions is None:
        functions = np.zeros(4, np.int64)
    _decoder.decode_images(functions, _readonly(encoded), offsets, sizes, *rest, status)
    return status
