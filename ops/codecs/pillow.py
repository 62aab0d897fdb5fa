"""Decode one image with the library of its format (`Format`): Pillow, unless the format names another one.

The plugin of the recognised format is called directly: no other plugin sees the bytes, and Pillow's own limits and
warnings do not apply. Pillow releases the GIL while it decodes, except for JPEG 2000. Called by `library`, and by the
processes of `isolation`.
"""

from __future__ import annotations

import ctypes
import io
import logging
import struct
import threading
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RejectCode, SampleError
from . import deep_colour
from .format import Format, Header
from .formats import BY_NAME, FORMATS, check_pixels
from .pixels import INVERSE_ORIENTATION, Empty, Pixels, fresh, orient


def decode(
    data: memoryview, header: Header, adjust_orientation: bool, max_pixels: int, lenient: bool = False,
    empty: Empty = fresh,
) -> Pixels:  # fmt: skip
    """Decode an image that is not a JPEG to (H, W, C), uint8, uint16 or float32: its first frame or page, with palettes
    and CMYK as RGB. ``header``: result of `formats.probe`. Raises SampleError, and no other exception, whatever the
    data is. Damage that decoders do not report is also rejected, unless ``lenient``. ``empty``: allocates the output
    for decoders that can write into given memory."""
    _quiet()
    format = BY_NAME[header.format]
    plugin = _plugin(format.pillow)  # outside the try, so that a missing plugin is not reported as a damaged file
    try:
        check_pixels(header.width, header.height, max_pixels)
        if format.library is not None:
            pixels = format.library(data, header, adjust_orientation, empty)
            if pixels is not None:
                return pixels
        pixels, turned = _by_plugin(plugin, format, data, header, max_pixels, lenient)
    except SampleError:
        raise
    except Exception as e:  # Pillow raises whatever its parsers raise: ten kinds were seen on damaged files
        raise explain(header.format, e) from e
    if turned:
        return pixels if adjust_orientation else orient(pixels, INVERSE_ORIENTATION[header.orientation])
    return orient(pixels, header.orientation) if adjust_orientation else pixels


def _by_plugin(
    plugin: Any, format: Format, data: memoryview, header: Header, max_pixels: int, lenient: bool
) -> tuple[Pixels, bool]:
    """Decode an image with Pillow's ``plugin``, or with imagecodecs if Pillow would drop bits. Return the pixels, and
    whether the orientation was already applied."""
    image = plugin(io.BytesIO(data))
    check_pixels(image.width, image.height, max_pixels)
    if format.check is not None and not lenient:
        format.check(data)
    deep = deep_colour.decode(data, header, image.mode)
    if deep is not None:
        return deep, False
    _heard.said = []
    image.load()
    if _heard.said and not lenient:
        raise SampleError("corrupt_data", f"the {header.format} is damaged: {_heard.said[0]}")
    check_pixels(image.width, image.height, max_pixels)  # for a few formats the size is known only now
    return _array(image, format, header), format.pillow_turns


def explain(format: str, error: BaseException) -> SampleError:
    """Convert an exception of Pillow to a SampleError with its code and its text."""
    text = str(error)
    low = text.lower()
    code: RejectCode = "corrupt_data"
    if isinstance(error, MemoryError):
        code, text = "too_large", "it needs more memory than there is"
    elif any(w in low for w in _TOO_LARGE):
        code = "too_large"
    elif isinstance(error, (EOFError, struct.error)) or any(w in low for w in _TRUNCATED):
        code = "truncated"
    elif isinstance(error, NotImplementedError) or any(w in low for w in _UNSUPPORTED):
        code = "unsupported"
    if not text or isinstance(error, (KeyError, IndexError, TypeError, AttributeError)):
        text = f"the decoder stopped with {type(error).__name__}{f': {text}' if text else ''}"
    return SampleError(code, f"{format} cannot be decoded: {text.splitlines()[0][:300]}")


_TOO_LARGE = ("decompressed data too large", "too much memory")  # texts of PNG: over 1 MB each, 64 MB together
_TRUNCATED = ("truncated", "not enough", "unexpected end", "premature", "reached end of file", "broken data stream")
_UNSUPPORTED = ("unsupported", "not supported", "unknown pixel mode", "unknown compression", "cannot handle")


def _array(image: Any, format: Format, header: Header) -> Pixels:
    mode = image.mode
    if mode in ("P", "PA"):
        image.info.pop("transparency", None)
        image = image.convert("RGB")
    elif mode in ("1", "CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
        image = image.convert("L" if mode == "1" else "RGB")
    elif mode in ("La", "RGBa"):
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[mode])
    pixels = np.asarray(image)
    if mode.startswith("I;16"):
        pixels = pixels.astype(np.uint16)  # I;16B is big-endian
    elif mode == "I":  # 16-bit samples, signed or wider than that: what fits into 16 bits
        pixels = np.clip(pixels, 0, 65535).astype(np.uint16)
    elif mode == "F":
        pixels = pixels.astype(np.float32)
    elif pixels.dtype != np.uint8:
        raise SampleError("unsupported", f"{header.format} with pixels of Pillow's mode {mode} is not decoded")
    if pixels.size == 0:
        raise SampleError("corrupt_data", f"the {header.format} has no pixels")
    pixels = _whole_range(pixels, format, header)
    return pixels.reshape(*pixels.shape[:2], -1)


def _whole_range(pixels: Pixels, format: Format, header: Header) -> Pixels:
    """Scale samples that do not have 8 or 16 bits to the whole range of their type."""
    bits, width = header.bits, 8 * pixels.dtype.itemsize
    if format.widen is None or bits == width or bits >= 16 or pixels.dtype.kind != "u":
        return pixels
    return format.widen(pixels, bits)


def load() -> None:
    """Import the modules that `decode` needs, so that the first image is not delayed."""
    for format in FORMATS:
        _plugin(format.pillow)


@cache
def _plugin(name: str) -> Any:
    """Return Pillow's class ``name`` (`Format.pillow`); None for an empty name."""
    if not name:
        return None
    # A handler on this logger keeps messages about odd files off stderr; users still get them from their own handlers.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    module, _, plugin = name.partition(".")
    found = getattr(import_module(f"PIL.{module}"), plugin)
    if module == "TiffImagePlugin":
        _listen_to_libtiff()
    return found


_heard = threading.local()
"""Messages of libtiff about damage in the image that this thread is decoding, in the attribute ``said``."""
_CODECS = ("Fax", "LZW", "ZIP", "PackBits", "JPEG", "OJPEG", "Thunder", "NeXT", "SGILog", "LogLuv", "Pixar", "LZMA",
           "ZSTD")  # fmt: skip
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)


@_Handler
def _listen(module: bytes | None, form: bytes | None, _arguments: int | None) -> None:
    """Handle a warning or error of libtiff, in the decoding thread. If a codec reports it, pixels are guessed; other
    messages are about unusual tags."""
    said = getattr(_heard, "said", None)
    name = (module or b"").decode("ascii", "replace")
    if said is not None and name.startswith(_CODECS):
        said.append(f"{name}: {(form or b'').decode('ascii', 'replace').partition('%')[0].strip() or 'bad data'}")


def _listen_to_libtiff() -> None:
    """Install `_listen` as the handler of libtiff's messages, for the whole process. Otherwise libtiff prints a line to
    stderr for damage, such as in fax data, and for every unusual tag, and continues."""
    try:
        loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libtiff" in line}
    except OSError:  # without /proc, the messages go to stderr
        return
    for path in loaded:
        library = ctypes.CDLL(path)
        library.TIFFSetWarningHandler(_listen)
        library.TIFFSetErrorHandler(_listen)


_FILTER = ("ignore", None, UserWarning)


def _quiet() -> None:
    """Suppress Pillow's warnings about odd but decodable files, which are of no use to the user. This installs one
    filter for Pillow's modules, again if other code (such as a test framework) has removed it:
    `warnings.catch_warnings` is not thread-safe."""
    first = warnings.filters[0] if warnings.filters else None
    if first is None or first[:3:2] != _FILTER[::2] or "PIL" not in str(getattr(first[3], "pattern", "")):
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
