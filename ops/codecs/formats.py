"""All image formats: the declarations of the folders of this room, and what follows from them for one file.

Nothing is decoded. Every probe reads only bounded, checked places of the data, so that hostile files cost microseconds
and decompression bombs are known before memory is asked for. JPEG headers of a batch are walked by `jpeg.header`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from ..errors import SampleError
from .format import Format, Header


def _declared() -> tuple[Format, ...]:
    """The formats of all folders that declare some, by their codes."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/format.py"))
    return checked(f for folder in folders for f in import_module(f".{folder}.format", __package__).FORMATS)


def checked(formats: Iterable[Format]) -> tuple[Format, ...]:
    """``formats`` by their codes. Raises TypeError if two of them share a code, a name, a suffix or a signature."""
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
"""Endings of image file names, with the dot."""
LISTED_SUFFIXES = tuple(s for f in FORMATS if f.listed for s in f.suffixes)
"""Endings of image file names that readers of files take when no ``file_filters`` are given."""
LABELS = ", ".join(f.label for f in FORMATS)
"""The formats in words."""
_SIGNATURES = tuple((s.mark, f) for f in FORMATS for s in f.signatures if s.at == 0)
_BEGINNINGS = {
    head: [pair for pair in _SIGNATURES if pair[0].startswith(head)] for head in {s[:2] for s, _ in _SIGNATURES}
}
"""The signatures by their first two bytes."""
_MATCHERS = tuple((f.matches, f.name) for f in FORMATS if f.matches is not None)


def recognise(data: memoryview) -> str:
    """The name of the format by its signature: ``jpeg``, ``png``, ... Raises SampleError for anything else."""
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
    """The header of an image, of format ``name`` if that is known. Raises SampleError, which says in words what is
    wrong."""
    format = BY_NAME[name or recognise(data)]
    try:
        header = format.probe(data)
    except (struct.error, IndexError, OverflowError) as e:  # an offset or a field that lies beyond the end
        raise SampleError("truncated", f"the {format.name} file ends inside its header") from e
    name, size = format.name, f"{header.width} x {header.height} pixels"
    if header.width <= 0 or header.height <= 0:
        raise SampleError("corrupt_data", f"the {name} header claims {size}")
    if max(header.width, header.height) > LARGEST:  # fields of 64 bits hold anything; products must not overflow
        raise SampleError("too_large", f"the {name} header claims {size}")
    if not (0 < header.channels < 1 << 16 and 0 < header.bits <= 64):
        raise SampleError("corrupt_data", f"the {name} header claims {header.channels} channels of {header.bits} bits")
    return header


LARGEST = (1 << 31) - 1
"""Pixels of a side, for any format."""
BOMB_RATIO = 1000.0
"""Pixels for each byte of a file, by default: an empty PNG has 340 of three channels, an empty JPEG 256."""
BOMB_PIXELS = 89_478_485
"""Pixels up to which an image may be packed as tightly as it likes (2^28 bytes of RGB; Pillow warns from there): an
empty page that was scanned as TIFF G4 has 30,000 pixels a byte."""


def check_pixels(width: int, height: int, limit: int, nbytes: int = 0, ratio: float = 0) -> None:
    """Raises SampleError for an image of more than ``limit`` pixels, and for a large one of more than ``ratio`` pixels
    for each of its ``nbytes`` (0: of any)."""
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
