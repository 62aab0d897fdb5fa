"""Thumbnails for pages. Encoded pictures may be damaged, or made to crash a decoder: they are decoded in a process of
its own, with little memory and time. ``python -m ...`` is that process."""

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
"""Pixels of the longer side."""
_QUALITY = 80
_MOST_PIXELS = 100_000_000
_MEMORY, _CPU_SECONDS, _SECONDS = 2 << 30, 20, 40
_RESTARTS = 3
"""Pictures that may end the process; those after them have no thumbnails."""
_LENGTH = struct.Struct("<q")


def thumbnail(image: Image.Image) -> bytes:
    """A small JPEG of ``image``."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=_QUALITY, optimize=True)
    return out.getvalue()


def thumbnails(encoded: Sequence[bytes]) -> list[bytes | None]:
    """A small JPEG of each encoded picture; None for what is none, or cannot be decoded by Pillow."""
    found: list[bytes | None] = []
    for _ in range(_RESTARTS + 1):
        if len(found) < len(encoded):
            found += _apart(encoded[len(found) :])
            if len(found) < len(encoded):
                found.append(None)  # it ended the process
    return found + [None] * (len(encoded) - len(found))


def _apart(encoded: Sequence[bytes]) -> list[bytes | None]:
    """The thumbnails that the process makes of ``encoded`` before it ends."""
    given = b"".join(_LENGTH.pack(len(one)) + one for one in encoded)
    try:
        done = subprocess.run([sys.executable, "-m", __name__], input=given, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False)  # fmt: skip
        answer = done.stdout
    except subprocess.TimeoutExpired as e:
        answer = e.stdout or b""
    except OSError:
        answer = b""
    found: list[bytes | None] = []
    at = 0
    while at + _LENGTH.size <= len(answer) and len(found) < len(encoded):
        (length,) = _LENGTH.unpack_from(answer, at)
        at += _LENGTH.size
        if length > len(answer) - at:
            break
        found.append(answer[at : at + length] if length else None)
        at += length
    return found


def _made(data: bytes) -> bytes:
    """The thumbnail; nothing where there is none."""
    try:
        if is_video(data):
            return thumbnail(contact_sheet(glimpse(data, FRAMES, FRAME_SIDE)[1]))
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (SIDE, SIDE))
            return thumbnail(ImageOps.exif_transpose(image))
    except Exception:  # Pillow raises many kinds for damaged files
        return b""


def main() -> None:
    """Answer pictures on stdin by thumbnails on stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    Image.MAX_IMAGE_PIXELS = _MOST_PIXELS
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # a part of a picture says more than none
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    read, write = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    while len(head := read.read(_LENGTH.size)) == _LENGTH.size:
        made = _made(read.read(_LENGTH.unpack(head)[0]))
        write.write(_LENGTH.pack(len(made)) + made)
        write.flush()


if __name__ == "__main__":
    main()
