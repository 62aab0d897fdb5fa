"""Thumbnails for pages. Encoded images may be damaged, or made to crash a decoder, so they are decoded in a separate
process with little memory and time. ``python -m ...`` runs that process."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import warnings
from collections.abc import Sequence

from PIL import Image, ImageFile, ImageOps

from ...ops.video.glimpse import glimpse, is_video
from ..show.pictures import FRAME_SIDE, FRAMES, contact_sheet

SIDE = 192
"""Length of a thumbnail's longer side, in pixels."""
_QUALITY = 80
_MOST_PIXELS = 100_000_000
_MEMORY, _CPU_SECONDS, _SECONDS = 2 << 30, 20, 40
_RESTARTS = 3
"""Number of times that the decoding process is started again after a crash. After that, the remaining images get no
thumbnails."""
_LENGTH = struct.Struct("<q")


def thumbnail(image: Image.Image) -> bytes:
    """Return a small JPEG of ``image``."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=_QUALITY, optimize=True)
    return out.getvalue()


def thumbnails(encoded: Sequence[bytes]) -> list[bytes | None]:
    """Return a small JPEG of each encoded image; None for data that cannot be decoded."""
    jpegs: list[bytes | None] = []
    for _ in range(_RESTARTS + 1):
        if len(jpegs) < len(encoded):
            jpegs += _apart(encoded[len(jpegs) :])
            if len(jpegs) < len(encoded):
                jpegs.append(None)  # this image ended the process
    return jpegs + [None] * (len(encoded) - len(jpegs))


def _apart(encoded: Sequence[bytes]) -> list[bytes | None]:
    """Return the thumbnails of images, made by a separate process; fewer than images if the process crashes."""
    request = b"".join(_LENGTH.pack(len(image)) + image for image in encoded)
    try:
        done = subprocess.run([sys.executable, "-m", __name__], input=request, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False)  # fmt: skip
        answer = done.stdout
    except subprocess.TimeoutExpired as e:
        answer = e.stdout or b""
    except OSError:
        answer = b""
    answers: list[bytes | None] = []
    at = 0
    while at + _LENGTH.size <= len(answer) and len(answers) < len(encoded):
        (length,) = _LENGTH.unpack_from(answer, at)
        at += _LENGTH.size
        if length > len(answer) - at:
            break
        answers.append(answer[at : at + length] if length else None)
        at += length
    return answers


def _made(data: bytes) -> bytes:
    """Return the thumbnail of an encoded image or video; empty if it cannot be decoded."""
    try:
        if is_video(data):
            return thumbnail(contact_sheet(glimpse(data, FRAMES, FRAME_SIDE)[1]))
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (SIDE, SIDE))
            return thumbnail(ImageOps.exif_transpose(image))
    except Exception:  # Pillow raises many exception types for damaged files
        return b""


def main() -> None:
    """Main program of the decoding process: read images from stdin, write thumbnails to stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    Image.MAX_IMAGE_PIXELS = _MOST_PIXELS
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # a part of an image is better than none
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    read, write = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    while len(head := read.read(_LENGTH.size)) == _LENGTH.size:
        jpeg = _made(read.read(_LENGTH.unpack(head)[0]))
        write.write(_LENGTH.pack(len(jpeg)) + jpeg)
        write.flush()


if __name__ == "__main__":
    main()
