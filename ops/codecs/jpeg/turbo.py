"""Decode JPEGs on the CPU: libjpeg-turbo through simplejpeg, directly into the output; Pillow for files that TurboJPEG
rejects."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from ...errors import RejectCode, SampleError
from ...types import DALIImageType
from ..format import Header
from ..pixels import Pixels
from . import header as jpeg_header

MAX_SCANS = 500
"""Maximum number of scans of a progressive JPEG. Files with more are attacks on the decoding time; libjpeg-turbo's
fuzzers have the same limit."""

_SPACES = {DALIImageType.BGR: "BGR", DALIImageType.GRAY: "GRAY"}


def check_header(row: Any) -> None:
    """Raise SampleError for a header (a row of `jpeg_header.HEADER`) that no decoder here supports."""
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
    """Return the number of channels of the image if the output type is ANY_DATA. CMYK gives 3, because it is converted
    to RGB."""
    return 1 if row["components"] == 1 else 3


def decode_into(
    data: memoryview, row: Any, output_type: DALIImageType, fast_idct: bool, out: memoryview, lenient: bool = False
) -> None:
    """Decode to (height, width, 1 or 3) uint8 at the start of ``out``, without orientation. ``row`` is the image's
    header.

    ``output_type`` may be RGB, BGR, GRAY (the Y plane) or ANY_DATA. Pixels are bit-identical to those of
    libjpeg-turbo's slow integer transform and fancy upsampling, unless ``fast_idct``. Damage that libjpeg only warns
    about is rejected if pixels may be wrong. With ``lenient``, it is accepted, with the pixels that libjpeg guesses.
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
        try:
            simplejpeg.decode_jpeg(data, space, fast_idct, buffer=out, strict=False)
        except ValueError:  # TurboJPEG's call for the header accepts no warning at all
            _by_pillow(data, row, space, out, damaged=True)
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


# -- files that TurboJPEG rejects -------------------------------------------------------------------------------------


def _recover(data: memoryview, row: Any, space: str, fast_idct: bool, out: memoryview, problem: str) -> None:
    """Decode an image again, without the harmless oddity that libjpeg's warning ``problem`` names. This attempt must
    succeed without a warning, because TurboJPEG reports only the last of several. Raises SampleError if the warning is
    about damage."""
    if any(w in problem for w in _NOT_FOR_TURBO):
        _by_pillow(data, row, space, out)
        return
    tidy = b""
    found = _EXTRANEOUS.search(problem)
    if found and int(found[2], 16) == _EOI:
        tidy = _without_padding(data, int(found[1]))
    elif found or any(w in problem for w in _HARMLESS):
        tidy = _without_oddities(data, row)
    if not tidy or tidy == data:
        raise _explain(problem)
    try:
        simplejpeg.decode_jpeg(tidy, space, fast_idct, buffer=out)
    except ValueError as e:
        _recover(memoryview(tidy), row, space, fast_idct, out, str(e))


def _without_padding(data: memoryview, extra: int) -> bytes:
    """Return the file without the ``extra`` bytes before its last EOI marker, if all of them are 0 (padding). Otherwise
    return no bytes: other values may be image data, left over because a flipped bit made codes shorter."""
    whole = bytes(data)
    end = whole.rfind(b"\xff\xd9")
    return whole[: end - extra] + whole[end:] if end >= extra and not any(whole[end - extra : end]) else b""


def _without_oddities(data: memoryview, row: Any) -> bytes:
    """Return the file without the features that libjpeg warns about although no pixel depends on them.

    These are bytes between segments before the first scan, unknown versions of JFIF, unknown colour transforms of Adobe
    (libjpeg assumes YCbCr or YCCK), and spectral selection in sequential scans. Entropy-coded data and everything else
    are kept. Return no bytes if a component has no scan: the bytes before the first scan may be one that lost its
    marker."""
    whole, parts, at, scanned = bytes(data), [b"\xff\xd8"], 2, set[int]()
    while found := _MARKER.search(whole, at):
        marker = found[1][0]
        if scanned:
            parts.append(whole[at : found.start()])
        if marker == _EOI:
            break
        at = found.end() + int.from_bytes(whole[found.end() : found.end() + 2], "big")
        segment = bytearray(whole[found.end() - 2 : at])
        if marker == 0xE0 and segment[4:9] == b"JFIF\0" and len(segment) > 9:
            segment[9] = 1
        elif marker == 0xEE and segment[4:9] == b"Adobe" and len(segment) > 15 and segment[15] > 2:
            segment[15] = 2 if row["components"] == 4 else 1
        elif marker == _SOS and len(segment) > 4:
            scanned.update(segment[5 : 5 + 2 * segment[4] : 2])
            if row["sof"] not in _PROGRESSIVE:
                segment[-3:] = b"\0\x3f\0"
        parts.append(bytes(segment))
    if len(scanned) < row["components"]:
        return b""
    return b"".join([*parts, whole[found.start() :] if found else b""])


_EOI, _SOS = 0xD9, 0xDA
_MARKER = re.compile(rb"\xff+([\x01-\xcf\xd8-\xfe])")
"""Pattern of a JPEG marker with its fill bytes. Restart markers are excluded, because they belong to the entropy-coded
data."""


def _by_pillow(data: memoryview, row: Any, space: str, out: memoryview, damaged: bool = False) -> None:
    """Decode with Pillow a file that TurboJPEG does not support. Because Pillow drops libjpeg's warnings, the file is
    first searched for damage, unless the caller knows that it is ``damaged``."""
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
    """Raise SampleError for a JPEG whose scans are damaged, or coded in a way that cannot be checked."""
    from .damage_cpu import CANNOT_TELL, CLEAN, WORDS, damage

    raw = np.frombuffer(bytearray(data), np.uint8)
    found = damage(raw)
    if found == CANNOT_TELL:
        raise SampleError("unsupported", f"a JPEG of unusual sampling, of which {WORDS[found]} for damage here")
    if found != CLEAN:
        raise SampleError("corrupt_data", f"the JPEG cannot be decoded: Corrupt JPEG data: {WORDS[found]}")


def _explain(problem: str) -> SampleError:
    """Convert an error message of TurboJPEG to a SampleError with code and cause."""
    low = problem.lower()
    code: RejectCode = "corrupt_data"
    if "premature end of jpeg" in low or "input buffer" in low:
        code = "truncated"
    elif any(w in low for w in _UNSUPPORTED):
        code = "unsupported"
    return SampleError(code, f"the JPEG cannot be decoded: {problem}")


_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
# unknown version or colour transform; unusual, but without effect
_HARMLESS = ("JFIF", "Adobe color transform", "Invalid SOS parameters")
_NOT_FOR_TURBO = ("determine subsampling", "Unsupported color conversion", "upsampling requested")
_UNSUPPORTED = ("unsupported", "not implemented", "not supported", "data precision")
