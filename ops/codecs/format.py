"""Declaration of an image format: what the rest of the project must know about it.

A folder of this room declares its formats in a module ``format``, as ``FORMATS``; `formats` collects them. Nothing else
lists formats: signatures, file names, headers, library decoders and rows of the decoder table come from here. A new
format is one folder with an ``__init__.py`` and a ``format.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .pixels import Empty, Pixels


@dataclass(frozen=True, slots=True)
class Header:
    """Header of one image, as it is stored: before any orientation is applied. Created by the format's ``probe``."""

    format: str
    """Name of the image's `Format`: ``png``."""
    width: int
    height: int
    channels: int
    """Channels as decoded with ANY_DATA: palettes count as colour, alpha counts."""
    bits: int
    """Bits per channel: 1 ... 16, or 32."""
    orientation: int = 1
    """Exif orientation, 1 ... 8."""


FORMAT, WIDTH, HEIGHT, CHANNELS, BITS, ORIENTATION = range(6)
"""Columns of an array of headers; FORMAT holds `Format.code`."""
JPEG = 0
"""`Format.code` of JPEG, whose headers are in another table."""
COLUMNS = 6
"""Number of columns of an array of headers."""


class Signature(NamedTuple):
    """Bytes at a fixed offset by which files of a format are recognised."""

    mark: bytes
    at: int = 0
    """Offset of the mark in the file."""
    suffix: str = ""
    """Ending of file names for this signature, if it is not the usual one of the format."""


Probe: TypeAlias = Callable[[memoryview], Header]
Library: TypeAlias = Callable[[memoryview, Header, bool, Empty], Pixels | None]
"""Function of (file, header, adjust_orientation, empty) that returns pixels (H, W, C), turned if asked for, or None for
a file that Pillow decodes."""


def _never() -> bool:
    return False


def _nothing_missing() -> str:
    return ""


@dataclass(frozen=True)
class Format:
    """One image format. Created once per process, at import; any thread may use it."""

    name: str
    """Name in headers, reports and messages: ``jpeg2000``."""
    code: int
    """Unique number in arrays of headers. Compiled loops and caches contain it, so it never changes. JPEG has 0."""
    label: str
    """Name for people: ``JPEG 2000``."""
    suffixes: tuple[str, ...]
    """Endings of file names in lower case, with the dot; the usual one first."""
    signatures: tuple[Signature, ...]
    """First bytes of its files."""
    probe: Probe
    """Function that reads the header of one file. Raises SampleError, or struct.error, IndexError or OverflowError for
    a file that ends too early."""
    matches: Callable[[memoryview], bool] | None = None
    """Function that recognises files that have no signature at offset 0."""
    listed: bool = True
    """Whether readers of files include its suffixes when no ``file_filters`` are given (DALI's list)."""
    mime: str = ""
    """MIME type, if web browsers show the format."""
    rows: str = ""
    """Module with the rows of the decoder table for this format that run on the host, as ``ROWS``, relative to this
    room; empty if its library alone decodes it."""
    gpu_rows: str = ""
    """Module with the rows for this format that run on a GPU."""
    library: Library | None = None
    """Decoder of one file by a library other than Pillow, tried first."""
    missing: Callable[[], str] = _nothing_missing
    """Function that returns what to install so that the format can be decoded; empty if all is installed."""
    pillow: str = ""
    """Pillow's plugin: ``PngImagePlugin.PngImageFile``; empty if Pillow does not decode the format."""
    pillow_turns: bool = False
    """Whether Pillow itself applies the orientation."""
    check: Callable[[memoryview], None] | None = None
    """Function that raises SampleError for damage that Pillow passes over."""
    stored: Callable[[memoryview, Header], Pixels | None] | None = None
    """Built-in decoder of one file, run in this process: returns the stored pixels, or None for a file that a library
    must decode or reject."""
    deep: Callable[[memoryview, Header], Pixels | None] | None = None
    """Built-in decoder of colour with more than 8 bits per channel, tried before imagecodecs; returns None as in
    `stored`."""
    keeps_16_bits: Callable[[], bool] = _never
    """Function that returns whether colour with more than 8 bits per channel keeps them without imagecodecs."""
    imagecodecs: str = ""
    """Name of the function of imagecodecs that decodes colour with more than 8 bits per channel."""
    widen: Callable[[Pixels, int], Pixels] | None = None
    """Function that scales Pillow's samples, which have the given number of bits, to the whole range of their type."""
    exact_size: bool = False
    """Whether every decoder returns pixels of the size that the header names, or fails."""
    extra_bytes: tuple[int, int] = (0, 0)
    """Bytes per sample that decoders hold in addition to pixels: on the host, on a GPU."""

    def __post_init__(self) -> None:
        if not (self.library or self.pillow):
            raise TypeError(f"format {self.name} declares no decoder: give `library` or `pillow`")
        if not self.suffixes or not all(s.startswith(".") and s == s.lower() for s in self.suffixes):
            raise TypeError(f"format {self.name}: suffixes are lower case and begin with a dot, got {self.suffixes}")
        if not self.signatures and self.matches is None:
            raise TypeError(f"format {self.name} cannot be recognised: give `signatures` or `matches`")
