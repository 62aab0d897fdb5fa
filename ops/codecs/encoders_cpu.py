"""Encoders on the CPU. JPEGs are encoded by a compiled loop over the batch, by Pillow until that loop is compiled, or
by simplejpeg with the fast DCT; PNG, WebP and AVIF by Pillow. None but Pillow's JPEG encoder holds the GIL while it
encodes, see tests/test_interpreter_lock.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, features

from ..batch import Batch
from ..kernels import Kernels
from .jpeg import tables

if TYPE_CHECKING:
    from .encoders import EncodeImage

_loops: Any = Kernels(".jpeg.encode_cpu", __package__)
_steps: Any = Kernels(".jpeg.forward_cpu", __package__)

ERRORS = (ValueError, OSError, RuntimeError)
"""Exceptions that the encoding libraries raise for images that they cannot encode."""
Picture = npt.NDArray[np.uint8]
Empty = Callable[[int, Any], npt.NDArray[Any]]

_BLOCK = ((80, 12), (92, 24), (97, 40), (100, 64))
"""Pairs (highest JPEG quality, output bytes to allocate per 8 x 8 block): twice what photographs need. An image that
needs more is encoded again, with more memory."""


@cache
def _constants(quality: int, subsampling: str, optimize: bool) -> tuple[npt.NDArray[Any], ...]:
    """Return the tables for encoding JPEGs of this quality: quantisation factors, Huffman codes, and file headers."""
    quantisers = _steps.quantisers(tables.quantisation(quality))
    return quantisers, tables.huffman_codes().reshape(-1), *tables.file_headers(quality, subsampling, optimize)


def jpeg_files(op: EncodeImage, empty: Empty, images: Batch, fit: npt.NDArray[np.bool_]) -> Batch:
    """Encode the images for which ``fit`` is true as JPEGs, in one compiled loop. The other images get empty files.
    ``empty(n, dtype)`` allocates arrays."""
    n, shapes, offsets = len(images), images.shapes.astype(np.int32), images.offsets.astype(np.int64)
    h, v = tables.SAMPLING[op.subsampling]
    places, sizes = np.empty(n, np.int64), np.empty((n, 1), np.int32)
    work = empty(_loops.work_bytes(shapes[fit], h, v, op.optimize), np.uint8)
    pixels = images.data.__array_interface__["data"][0]
    block = next(nbytes for limit, nbytes in _BLOCK if op.quality <= limit)
    blocks = -(-shapes[:, 0].astype(np.int64) // 8) * -(-shapes[:, 1] // 8) * shapes[:, 2]
    room = np.where(fit, tables.HEADER_ROOM + _loops.MCU_ROOM + blocks * block, 0)
    parts: list[Picture] = []
    done = before = 0
    more = 1
    while done < n:
        out = empty(int(room[done:].sum()) if more == 1 else int(room[done]) * more, np.uint8)
        now, end = _loops.encode_images(
            pixels, offsets, shapes, fit, done, (h, v), op.optimize, *_constants(op.quality, op.subsampling,
            op.optimize), work, out, places, sizes,
        )  # fmt: skip
        places[done:now] += before
        parts.append(out[:end])
        more = 1 if now > done else 2 * more
        done, before = now, before + end
    data = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Batch(data, places, sizes, "", images.samples)


@cache
def pillow_writes_our_jpegs() -> bool:
    """Return whether Pillow writes the same bytes as `jpeg_files`. Pillow built without libjpeg-turbo does not."""
    return bool(features.check_feature("libjpeg_turbo"))


def _jpeg(op: EncodeImage, image: Picture) -> bytes:
    """Encode an image as JPEG. If ``op.fast_dct``, simplejpeg does it: TurboJPEG uses the fast DCT below quality 96.
    Otherwise Pillow does, with the same bytes as `jpeg_files`."""
    if not op.fast_dct:
        return _save(image, "JPEG", quality=op.quality, subsampling=op.subsampling)
    gray = image.shape[2] == 1
    chroma = "Gray" if gray else op.subsampling.replace(":", "")
    data: bytes = simplejpeg.encode_jpeg(image, op.quality, "GRAY" if gray else "RGB", chroma)
    return data


def _png(op: EncodeImage, image: Picture) -> bytes:
    return _save(image, "PNG", compress_level=op.compression)


def _webp(op: EncodeImage, image: Picture) -> bytes:
    if op.quality == 100:
        return _save(image, "WEBP", lossless=True, exact=True)
    return _save(image, "WEBP", quality=op.quality)


def _avif(op: EncodeImage, image: Picture) -> bytes:
    return _save(image, "AVIF", quality=op.quality, subsampling=op.subsampling, speed=op.speed, max_threads=1)


def _save(image: Picture, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(out, kind, **options)
    return out.getvalue()


ENCODERS: dict[str, Callable[[EncodeImage, Picture], bytes]] = {
    "jpeg": _jpeg, "png": _png, "webp": _webp, "avif": _avif,
}  # fmt: skip
"""For each format, the function that encodes one image (H, W, C), C-contiguous, to a file. The function for JPEG is
only used with the fast DCT, or while the compiled loop is not ready."""
