"""All image formats: the declarations in this package's folders, and functions that recognise and probe one file.

Nothing is decoded. Every probe reads only bounded, checked parts of the data, so that hostile files cost microseconds,
and decompression bombs are detected before memory is allocated. `jpeg.header` reads the JPEG headers of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from ..errors import SampleError
from .format import Format, Header


def _declared() -> tuple[Format, ...]:
    """Return the image formats that the folders of this package declare, ordered by their codes."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/format.py"))
    return checked(f for folder in folders for f in import_module(f".{folder}.format", __package__).FORMATS)


def checked(formats: Iterable[Format]) -> tuple[Format, ...]:
    """Return ``formats`` ordered by their codes. Raises TypeError if two of them have the same code, name, suffix or
    signature."""
    found = sorted(formats, key=lambda f: f.code)
    seen: dict[object, str] = {}
    for f in found:
        for key in (f.code, f.name, *f.suffixes, *((s.at, s.mark) for s in f.signatures)):
            if key in seen:
                raise TypeError(f"formats {seen[key]} and {f.name} both declare {key!r}")
            seen[key] = f.name
    return tuple(found)


FORMATS = _declared()
BY_NAME = {f.name: f for f in FORMATS}
BY_CODE = {f.code: f for f in FORMATS}
BY_SUFFIX = {s: f for f in FORMATS for s in f.suffixes}
SUFFIXES = tuple(BY_SUFFIX)
"""Endings of image file names of all formats, with the dot."""
LISTED_SUFFIXES = tuple(s for f in FORMATS if f.listed for s in f.suffixes)
"""Endings of image file names that readers accept if no ``file_filters`` are given."""
LABELS = ", ".join(f.label for f in FORMATS)
"""Names of all image formats, as one text for messages."""
_SIGNATURES = tuple((s.mark, f) for f in FORMATS for s in f.signatures if s.at == 0)
_BEGINNINGS = {
    head: [pair for pair in _SIGNATURES if pair[0].startswith(head)] for head in {s[:2] for s, _ in _SIGNATURES}
}
"""Signatures at the start of a file, with their formats, by the file's first two bytes."""
_MATCHERS = tuple((f.matches, f.name) for f in FORMATS if f.matches is not None)


def recognise(data: memoryview) -> str:
    """Return the name of a file's image format, such as ``jpeg``, by its signature. Raises SampleError if no format
    matches."""
    head = bytes(data[:32])
    for signature, found in _BEGINNINGS.get(head[:2], ()):
        if head.startswith(signature):
            return found.name
    for matches, name in _MATCHERS:
        if matches(data):
            return name
    if not head:
        raise SampleError("not_an_image", "the file is empty")
    if any(signature.startswith(head) for signature, _ in _SIGNATURES):
        raise SampleError("truncated", f"the file ends after {len(head)} bytes, inside its signature")
    shown = head[:8].hex(" ")
    raise SampleError("not_an_image", f"starts with {shown}, which is no known image format ({LABELS})")


def probe(data: memoryview, name: str = "") -> Header:
    """Return the header of an encoded image. ``name``: its format, recognised by its signature if empty. Raises
    SampleError that names the problem."""
    format = BY_NAME[name or recognise(data)]
    try:
        header = format.probe(data)
    except (struct.error, IndexError, OverflowError) as e:  # an offset or a field is beyond the end
        raise SampleError("truncated", f"the {format.name} file ends inside its header") from e
    name, size = format.name, f"{header.width} x {header.height} pixels"
    if header.width <= 0 or header.height <= 0:
        raise SampleError("corrupt_data", f"the {name} header claims {size}")
    if max(header.width, header.height) > LARGEST:  # 64-bit fields may hold any number; products must not overflow
        raise SampleError("too_large", f"the {name} header claims {size}")
    if not (0 < header.channels < 1 << 16 and 0 < header.bits <= 64):
        raise SampleError("corrupt_data", f"the {name} header claims {header.channels} channels of {header.bits} bits")
    return header


LARGEST = (1 << 31) - 1
"""Maximum width and height in pixels of an image of any format."""
BOMB_RATIO = 1000.0
"""Default limit on decoded pixels per byte of a file, against decompression bombs. For comparison: an empty PNG of
three channels has 340 pixels per byte, an empty JPEG 256."""
BOMB_PIXELS = 89_478_485
"""Number of pixels up to which `BOMB_RATIO` does not apply (2^28 bytes of RGB, above which Pillow warns). An empty page
scanned as TIFF G4 has 30,000 pixels per byte."""


def check_pixels(width: int, height: int, limit: int, nbytes: int = 0, ratio: float = 0) -> None:
    """Raise SampleError for an image of more than ``limit`` pixels, or for a large image with more than ``ratio``
    pixels per byte of its file, which has ``nbytes``. A ratio of 0 allows any number."""
    if width * height > limit:
        raise SampleError(
            "too_large", f"the header claims {width} x {height} pixels, over the limit of {limit:,} (max_pixels)"
        )
    if ratio and width * height > max(BOMB_PIXELS, ratio * nbytes):
        raise SampleError(
            "too_large",
            f"the header claims {width} x {height} pixels in a file of {nbytes:,} bytes, over the limit of {ratio:g} "
            "pixels a byte (bomb_ratio)",
        )
