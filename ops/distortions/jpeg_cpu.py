"""JPEG there and back on the CPU: Pillow's encoder and libjpeg-turbo's decoder, without the GIL."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

Picture = npt.NDArray[np.uint8]


def distort(picture: Picture, quality: int, out: Picture) -> None:
    """Compress ``picture`` (H, W, 3) and decompress it into ``out``."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling="4:2:0")  # TurboJPEG: not the exact DCT
    simplejpeg.decode_jpeg(file.getbuffer(), "RGB", buffer=out)
