"""Declaration of an image format: what the rest of the project must know about it.

A folder of this package declares its formats in a module ``format``, as ``FORMATS``; `formats` collects them. Nothing
else lists formats: signatures, file names, headers, library decoders and rows of the decoder table come from here. A
new format is one folder with an ``__init__.py`` and a ``format.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .pixels import Empty, Pixels


@dataclass(frozen=True, slots=True)
class Header:
    """Header of one image. Sizes are as stored, before any rotation by the Exif orientation. Created by the ``probe``
    function of the image's format."""

    format: str
    """Name of the image's `Format`, such as ``png``."""
    width: int
    height: int
    channels: int
    """Number of channels that the output type ANY_DATA gives: a palette counts as 3, and alpha is included."""
    bits: int
    """Bits per channel as stored: 1 to 16, or 32."""
    orientation: int = 1
    """Exif orientation, 1 to 8; 1 is upright."""


FORMAT, WIDTH, HEIGHT, CHANNELS, BITS, ORIENTATION = range(6)
"""Columns of a header array, which has one row per image. FORMAT holds `Format.code`."""
JPEG = 0
"""`Format.code` of JPEG. JPEG headers are not stored in header arrays, but in a table of their own."""
COLUMNS = 6
"""Number of columns of a header array, which has one row per image."""


class Signature(NamedTuple):
    """Signature of a format: bytes that are at a fixed offset in all of its files."""

    mark: bytes
    at: int = 0
    """Offset in the file of the bytes to compare."""
    suffix: str = ""
    """Ending of the names of files with this signature; empty for the format's usual ending."""


Probe: TypeAlias = Callable[[memoryview], Header]
Library: TypeAlias = Callable[[memoryview, Header, bool, Empty], Pixels | None]
"""Function that decodes a file with a library. Arguments: file, header, adjust_orientation (whether to rotate the
pixels), and a function that allocates memory. It returns pixels (H, W, C), or None for a file that Pillow must
decode."""


def _never() -> bool:
    return False


def _nothing_missing() -> str:
    return ""


@dataclass(frozen=True)
class Format:
    """One image format. Created once per process, at import; any thread may use it."""

    name: str
    """Name of the format in headers, reports and messages, such as ``jpeg2000``."""
    code: int
    """Number of the format in header arrays; 0 for JPEG. It never changes, because compiled loops and caches contain
    it."""
    label: str
    """Name of the format for people, such as ``JPEG 2000``."""
    suffixes: tuple[str, ...]
    """Endings of the names of the format's files, in lower case, with the dot; the usual one first."""
    signatures: tuple[Signature, ...]
    """Signatures of the format's files: each file has one of them."""
    probe: Probe
    """Function that reads the header of one file. It raises SampleError, or struct.error, IndexError or OverflowError
    for a file that ends too early."""
    matches: Callable[[memoryview], bool] | None = None
    """Function that returns whether a file has this format, if it has no signature at offset 0; None for formats with
    such a signature."""
    listed: bool = True
    """Whether readers accept files with these suffixes if no ``file_filters`` are given (as in DALI's list)."""
    mime: str = ""
    """MIME type of the format if web browsers can show it; otherwise empty."""
    rows: str = ""
    """Module whose list ``ROWS`` contains the format's built-in decoders for the CPU, named relative to this package;
    empty if there are none."""
    gpu_rows: str = ""
    """Module whose list ``ROWS`` contains the format's decoders for a GPU, as a name relative to this folder; empty if
    there are none."""
    library: Library | None = None
    """Function that decodes one file with a library other than Pillow, before Pillow is tried. None if there is no such
    library."""
    missing: Callable[[], str] = _nothing_missing
    """Function that returns what to install for decoding the format; an empty text if nothing is missing."""
    pillow: str = ""
    """Pillow's class for the format, such as ``PngImagePlugin.PngImageFile``; empty if Pillow cannot decode it."""
    pillow_turns: bool = False
    """Whether Pillow itself rotates and flips images as their orientation says."""
    check: Callable[[memoryview], None] | None = None
    """Function that raises SampleError for damage that Pillow does not report; None if Pillow reports all damage."""
    stored: Callable[[memoryview, Header], Pixels | None] | None = None
    """Function that decodes one file with the built-in decoder. It returns the stored pixels, or None if a library must
    decode or reject the file."""
    deep: Callable[[memoryview, Header], Pixels | None] | None = None
    """Function that decodes one file of more than 8 bits per channel with the built-in decoder, tried before
    imagecodecs. Returns as `stored` does."""
    keeps_16_bits: Callable[[], bool] = _never
    """Function that returns whether more than 8 bits per colour channel can be decoded without imagecodecs."""
    imagecodecs: str = ""
    """Name of the function of imagecodecs that decodes colour with more than 8 bits per channel; empty if none does."""
    widen: Callable[[Pixels, int], Pixels] | None = None
    """Function (pixels, bits per sample) that scales Pillow's samples to the whole range of their dtype; None if no
    scaling is needed."""
    exact_size: bool = False
    """Whether every decoder of the format returns pixels of exactly the size in the header, or fails."""
    extra_bytes: tuple[int, int] = (0, 0)
    """Bytes of memory that decoding needs in addition to the pixels, per sample (one channel of a pixel): on the host,
    and on a GPU."""

    def __post_init__(self) -> None:
        if not (self.library or self.pillow):
            raise TypeError(f"format {self.name} declares no decoder: give `library` or `pillow`")
        if not self.suffixes or not all(s.startswith(".") and s == s.lower() for s in self.suffixes):
            raise TypeError(f"format {self.name}: suffixes are lower case and begin with a dot, got {self.suffixes}")
        if not self.signatures and self.matches is None:
            raise TypeError(f"format {self.name} cannot be recognised: give `signatures` or `matches`")
