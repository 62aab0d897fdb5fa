"""Last decoder of the decoder table, which decodes each image that is not a JPEG with the library of its format, on one
thread, or in a separate process if decoders are isolated. Built-in decoders of one file (`Format.stored`) are tried
first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..batch import I64
from ..errors import SampleError
from .decoder_table import NO_IMAGES, DecodeJob, Decoder, Mask, Outcome, Target
from .format import Header
from .formats import BY_NAME
from .headers import encoded_bytes
from .pixels import Pixels, orient, recolour

T = TypeVar("T")
DAMAGE = ("corrupt_data", "truncated")
"""Reject codes of damage after which a decoder may still be able to guess the pixels."""
SIZES_DIFFER = SampleError("corrupt_data", "the header is damaged: two decoders read different sizes from it")


class LibraryDecoder(Decoder):
    """Decoder for images of all formats but JPEG, one at a time: by the format's built-in decoder, or else by a library
    such as Pillow."""

    name = "other formats"

    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        taken: Mask = job.headers.other[indices]
        return taken

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        def use(i: int, pixels: Pixels) -> bool:
            if not job.has_shape(i, pixels):
                return False
            sample = target.out.sample(target.sample(i))
            sample[...] = recolour(window(job, i, pixels, sample.shape), job.rules.output_type, job.rules.dtype)
            return True

        images = indices.tolist()
        for i, found in zip(images, decode_several(job, use, images), strict=True):
            if isinstance(found, SampleError):
                outcome.errors[i] = found
            elif not found:
                outcome.reshaped.append(i)
        return NO_IMAGES


ROWS = (LibraryDecoder(),)


def window(job: DecodeJob, i: int, pixels: Pixels, shape: Sequence[int]) -> Pixels:
    """Return the window of image ``i``, cut out of the whole image ``pixels``. ``shape``: height and width of the
    window."""
    y, x = job.anchor(i) or (0, 0)
    return pixels[y : y + shape[0], x : x + shape[1]]


def decode_first(
    job: DecodeJob, indices: Sequence[int], run: Callable[..., Iterable[Any]] = map
) -> dict[int, Pixels]:  # fmt: skip
    """Decode the non-JPEG images ``indices`` before the output is allocated, because their headers do not tell their
    true shapes. Return the pixels, oriented and converted in colour, by index. Write the shapes to the headers of
    ``job``. ``run``: function like `map`, for example of a pool of threads."""
    rules, headers, ctx = job.rules, job.headers, job.ctx

    def kept(_: int, pixels: Pixels) -> tuple[int, Pixels]:
        return pixels.shape[2], np.array(recolour(pixels, rules.output_type, rules.dtype))

    images: dict[int, Pixels] = {}
    good = [i for i in indices if headers.good[i]]
    results = decode_several(job, kept, good) if run is map else run(partial(_decode_one, job, kept), good)
    for i, result in zip(good, results, strict=True):
        if isinstance(result, SampleError):
            headers.drop(i)
            ctx.reject(i, result.code, str(result))
            continue
        headers.channels[i], images[i] = result
        headers.height[i], headers.width[i] = images[i].shape[:2]
    return images


def decode_several(job: DecodeJob, use: Callable[[int, Pixels], T], indices: Sequence[int]) -> list[T | SampleError]:
    """Decode the non-JPEG images ``indices``, and call ``use`` on the index and pixels of each. The pixels are as
    stored, but oriented, and valid only during the call, because they may be in a worker's memory. Return for each
    image the result of ``use``, or its error. Worker processes, if used, get several images per request."""
    if job.isolation is None:
        return [_decode_one(job, use, i) for i in indices]
    found: dict[int, T | SampleError] = {}
    sent = []
    for i in indices:
        pixels = _stored(job, encoded_bytes(job.batch, i), job.headers.header(i))
        if pixels is None:
            sent.append(i)
        else:
            found[i] = use(i, pixels)
    files = [(encoded_bytes(job.batch, i), job.headers.header(i)) for i in sent]
    rules = job.rules
    results = job.isolation.lend_several(
        files, rules.adjust_orientation, rules.max_pixels, lambda k, p: use(sent[k], p)
    )
    for i, result in zip(sent, results, strict=True):
        found[i] = _after_error(job, use, i, result) if isinstance(result, SampleError) else result
    return [found[i] for i in indices]


def _decode_one(job: DecodeJob, use: Callable[[int, Pixels], T], i: int) -> T | SampleError:
    data, header = encoded_bytes(job.batch, i), job.headers.header(i)
    pixels = _stored(job, data, header)
    if pixels is not None:
        return use(i, pixels)
    try:
        return _by_library(job, data, header, partial(use, i))
    except SampleError as e:
        return _after_error(job, use, i, e)


def _stored(job: DecodeJob, data: memoryview, header: Header) -> Pixels | None:
    """Decode an image with its format's built-in decoder, oriented if the operator's arguments require it. Return None
    if there is no such decoder, or if it does not support the image."""
    decode = BY_NAME[header.format].stored
    pixels = decode(data, header) if job.in_process and decode is not None else None
    if pixels is None:
        return None
    return orient(pixels, header.orientation) if job.rules.adjust_orientation else pixels


def _by_library(
    job: DecodeJob, data: memoryview, header: Header, use: Callable[[Pixels], T], lenient: bool = False
) -> T:  # fmt: skip
    """Decode an image with the library of its format, call ``use`` on the pixels, and return the result of ``use``.
    Raises SampleError."""
    from . import pillow

    how = job.rules.adjust_orientation, job.rules.max_pixels
    if job.isolation is None:
        return use(pillow.decode(data, header, *how, lenient=lenient))
    return job.isolation.lend(data, header, *how, use, **({"lenient": True} if lenient else {}))


def _after_error(job: DecodeJob, use: Callable[[int, Pixels], T], i: int, problem: SampleError) -> T | SampleError:
    """Handle ``problem``, the decoder's error for image ``i``. If the operator keeps damaged images, return the result
    of ``use`` for the pixels that the decoder guesses; otherwise return ``problem``."""
    if job.rules.on_damage == "reject" or problem.code not in DAMAGE:
        return problem
    data, header = encoded_bytes(job.batch, i), job.headers.header(i)
    try:
        made = _by_library(job, data, header, partial(use, i), lenient=True)
    except SampleError:
        return problem
    job.headers.damaged[i] = problem
    return made
