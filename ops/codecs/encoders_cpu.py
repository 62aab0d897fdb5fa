"""Encoders on the CPU: Pillow, and simplejpeg for the fast DCT. Both release the GIL."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageFile

if TYPE_CHECKING:
    from .encoders import EncodeImage

ERRORS = (ValueError, OSError, RuntimeError)
"""Errors that the libraries raise for images that they cannot encode."""
Picture = npt.NDArray[np.uint8]


def _jpeg(op: EncodeImage, image: Picture) -> bytes:
    if op.fast_dct:  # TurboJPEG takes the fast DCT below quality 96 by itself, and simplejpeg cannot say otherwise
        gray = image.shape[2] == 1
        chroma = "Gray" if gray else op.subsampling.replace(":", "")
        data: bytes = simplejpeg.encode_jpeg(image, op.quality, "GRAY" if gray else "RGB", chroma)
        return data
    save = partial(_save, image, "JPEG", quality=op.quality, subsampling=op.subsampling, optimize=op.optimize)
    try:
        return save()
    except OSError:
        if not op.optimize:
            raise
        _make_room(4 * image.size)
        return save()


_room = threading.Lock()


def _make_room(nbytes: int) -> None:
    """Let Pillow write files of up to ``nbytes``: optimised ones must fit into its buffer, which is too small for
    noise. A larger one costs address space alone."""
    with _room:
        ImageFile.MAXBLOCK = max(ImageFile.MAXBLOCK, nbytes)


def _png(op: EncodeImage, image: Picture) -> bytes:
    return _save(image, "PNG", compress_level=op.compression)


def _webp(op: EncodeImage, image: Picture) -> bytes:
    if op.quality == 100:
        return _save(image, "WEBP", lossless=True, exact=True)
    return _save(image, "WEBP", quality=op.quality)


def _save(image: Picture, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(out, kind, **options)
    return out.getvalue()


ENCODERS: dict[str, Callable[[EncodeImage, Picture], bytes]] = {"jpeg": _jpeg, "png": _png, "webp": _webp}
"""By format: the file of an image (H, W, C), C-contiguous."""
