"""JPEG on the CPU: libjpeg-turbo through simplejpeg, straight into the output; Pillow for what TurboJPEG refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from ...errors import RejectCode, SampleError
from ...types import DALIImageType
from ..formats import Header
from ..pixels import Pixels
from . import header as jpeg_header

MAX_SCANS = 500
"""Scans of a progressive JPEG; more is an attack on time (libjpeg-turbo's fuzzers stop there too)."""

_SPACES = {DALIImageType.BGR: "BGR", DALIImageType.GRAY: "GRAY"}


def check_header(row: Any) -> None:
    """Raises SampleError for a header (a row of `jpeg_header.HEADER`) that no decoder here takes."""
    status, precision = int(row["status"]), int(row["precision"])
    if row["width"] > 0 and precision not in (0, 8):
        raise SampleError(
            "unsupported", f"a JPEG of {precision} bits a channel; only 8 bits are decoded, convert it to PNG or TIFF"
        )
    if status == jpeg_header.TRUNCATED:
        raise SampleError("truncated", "the JPEG ends inside its header")
    if status == jpeg_header.NOT_JPEG:
        raise SampleError("not_an_image", "the file does not start as a JPEG does")
    if row["width"] <= 0 or row["height"] <= 0:
        raise SampleError("corrupt_data", "the JPEG header is damaged: no frame with a size")
    if row["components"] not in (1, 3, 4):
        raise SampleError("unsupported", f"a JPEG of {int(row['components'])} components; 1, 3 and 4 are decoded")


def stored_channels(row: Any) -> int:
    """Channels as decoded with ANY_DATA: CMYK counts as colour."""
    return 1 if row["components"] == 1 else 3


def decode_into(
    data: memoryview, row: Any, output_type: DALIImageType, fast_idct: bool, out: memoryview, lenient: bool = False
) -> None:
    """Decode to (height, width, 1 or 3) uint8 at the start of ``out``, unrotated. ``row`` is the image's header.

    RGB, BGR, GRAY (the Y plane) and ANY_DATA; bit-identical to libjpeg-turbo's slow integer transform and fancy
    upsampling, unless ``fast_idct``. Damage that libjpeg only warns about is refused where pixels may be wrong, unless
    ``lenient``: then they are as libjpeg guesses them.
    Raises SampleError.
    """
    four = row["components"] == 4
    space = _SPACES.get(output_type, "RGB")
    if row["components"] == 1 and output_type is DALIImageType.ANY_DATA:
        space = "GRAY"
    if four and space == "GRAY":
        _copy(_gray_of_cmyk(data, row, lenient), out)
        return
    if row["sof"] in _PROGRESSIVE and (scans := bytes(data).count(b"\xff\xda")) > MAX_SCANS:
        raise SampleError("too_large", f"a progressive JPEG of {scans} scans, over the limit of {MAX_SCANS}")
    if lenient:
        _leniently(data, row, space, fast_idct, out, damaged=True)
        return
    try:
        simplejpeg.decode_jpeg(data, space, fast_idct, buffer=out)
    except ValueError as e:
        _recover(data, row, space, fast_idct, out, str(e))


_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)


def _gray_of_cmyk(data: memoryview, row: Any, lenient: bool) -> Pixels:
    from ..pixels import recolour

    rgb = np.empty((int(row["height"]), int(row["width"]), 3), np.uint8)
    decode_into(data, row, DALIImageType.RGB, False, rgb.reshape(-1).data, lenient)
    return recolour(rgb, DALIImageType.GRAY, np.dtype(np.uint8))


def _copy(image: npt.NDArray[np.uint8], out: memoryview) -> None:
    np.frombuffer(out, np.uint8, image.size).reshape(image.shape)[...] = image


# -- what TurboJPEG said no to ----------------------------------------------------------------------------------------


def _recover(data: memoryview, row: Any, space: str, fast_idct: bool, out: memoryview, problem: str) -> None:
    """Decode after a warning that is no damage, or raise SampleError that says what is wrong.

    TurboJPEG reports the last warning. One about the header, if it is the last, means that the scans gave none.
    """
    if any(w in problem for w in _NOT_FOR_TURBO):
        _by_pillow(data, row, space, out)
        return
    if any(w in problem for w in _HARMLESS):
        _leniently(data, row, space, fast_idct, out)
        return
    found = _EXTRANEOUS.search(problem)
    if found:
        count, marker = int(found[1]), int(found[2], 16)
        if marker != 0xD9 and not 0xD0 <= marker <= 0xD7:  # between the segments of the header
            _leniently(data, row, space, fast_idct, out)
            return
        if marker == 0xD9 and _clean_without(data, count, space, out):
            return
    raise _explain(problem)


def _leniently(data: memoryview, row: Any, space: str, fast_idct: bool, out: memoryview, damaged: bool = False) -> None:
    try:
        simplejpeg.decode_jpeg(data, space, fast_idct, buffer=out, strict=False)
    except ValueError:  # TurboJPEG's header call takes no warning whatever
        _by_pillow(data, row, space, out, damaged)


def _clean_without(data: memoryview, extra: int, space: str, out: memoryview) -> bool:
    """The stream decodes without a warning once ``extra`` bytes before its last EOI are cut out, which are all alike:
    padding, no damage. (A flipped bit may make codes shorter: then bytes of the picture are left over.)"""
    whole = bytes(data)
    end = whole.rfind(b"\xff\xd9")
    if end < extra or len(set(whole[end - extra : end])) > 1:
        return False
    try:
        simplejpeg.decode_jpeg(whole[: end - extra] + b"\xff\xd9", space, buffer=out)
    except ValueError:
        return False
    return True


def _by_pillow(data: memoryview, row: Any, space: str, out: memoryview, damaged: bool = False) -> None:
    """Decode what TurboJPEG does not take. Pillow drops libjpeg's warnings, so damage is looked for first."""
    from ..pillow import decode

    if not damaged:
        check_undamaged(data)
    header = Header("jpeg", int(row["width"]), int(row["height"]), stored_channels(row), 8)
    pixels = decode(data, header, adjust_orientation=False, max_pixels=header.width * header.height)
    if space == "GRAY" and pixels.shape[2] == 3:
        raise SampleError(
            "unsupported", "a JPEG whose Y plane cannot be decoded alone (its chroma sampling is unusual)"
        )
    if pixels.shape[2] == 1 and space != "GRAY":
        pixels = pixels.repeat(3, axis=2)
    if pixels.shape[:2] != (header.height, header.width):
        raise SampleError("corrupt_data", "the JPEG header is damaged: two decoders read different sizes from it")
    _copy(pixels[..., ::-1] if space == "BGR" else pixels, out)


def check_undamaged(data: memoryview) -> None:
    """Raises SampleError for a JPEG whose scans are damaged, or coded in a way that nobody here can check."""
    from .damage_cpu import CANNOT_TELL, CLEAN, WORDS, damage

    raw = np.frombuffer(bytearray(data), np.uint8)
    found = damage(raw)
    if found == CANNOT_TELL:
        raise SampleError("unsupported", f"a JPEG of unusual sampling, of which {WORDS[found]} for damage here")
    if found != CLEAN:
        raise SampleError("corrupt_data", f"the JPEG cannot be decoded: Corrupt JPEG data: {WORDS[found]}")


def _explain(problem: str) -> SampleError:
    """TurboJPEG's words as a code and a cause."""
    low = problem.lower()
    code: RejectCode = "corrupt_data"
    if "premature end of jpeg" in low or "input buffer" in low:
        code = "truncated"
    elif any(w in low for w in _UNSUPPORTED):
        code = "unsupported"
    return SampleError(code, f"the JPEG cannot be decoded: {problem}")


_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_HARMLESS = ("JFIF", "Adobe color transform", "Invalid SOS parameters")  # unknown revision or code; odd, but unused
_NOT_FOR_TURBO = ("determine subsampling", "Unsupported color conversion", "upsampling requested")
_UNSUPPORTED = ("unsupported", "not implemented", "not supported", "data precision")
