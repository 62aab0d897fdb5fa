"""The table of decoders: one row per way to decode images, for the host and for GPUs, and the loop that runs it.

Rows that support the same image give the same bits, so any of them may decode it; the order of the table decides.
`deal` assigns each image to the first row that supports it, `run` passes the images that a row could not decode to the
rows after it. Formats declare their rows (`Format.rows`). libjpeg-turbo decodes or rejects every remaining JPEG, and
the last row, the libraries of the formats, every other image.

`host_decode` runs the table on the CPU, `threaded_decode` in the threads that work for a GPU. The rows of a GPU
(`gpu_table`) come first there: `gpu_decode` starts them and leaves the other images to these threads.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch
from ..context import Context
from ..errors import SampleError
from ..interfaces import Isolation
from ..types import DALIImageType
from .formats import FORMATS
from .headers import Headers, Rules

Mask = npt.NDArray[np.bool_]
Needed = Callable[[I32], I64]
"""Function of the shapes of decoded images [N, 3] that returns the window of each that later operators use, [N, 4]: y0,
x0, y1, x1."""
NO_IMAGES: I64 = np.empty(0, np.int64)


@dataclass(slots=True)
class DecodeJob:
    """One batch that the table decodes. Created by one call of a decoder, which alone changes it; threads that decode
    for this call read it."""

    ctx: Context
    """Context in which the decoder was called."""
    batch: Batch
    """Batch of the encoded images, in host memory."""
    headers: Headers
    rules: Rules
    anchors: I64 | None = None
    """[N, 2] corners (y, x) of the windows, in the oriented image; None for whole images."""
    shapes: I32 = field(init=False)
    """[N, 3] shapes of the results; set when the windows are known."""
    offsets: I64 = field(init=False)
    """[N] First element of each result in the output on a GPU."""
    facts: Context | None = None
    """Context whose cached facts the native JPEG loops use; None: ``ctx``."""
    needed: Needed | None = None
    """Function that returns the windows of images that must be decoded; None: all pixels."""
    staging: Callable[[int], npt.NDArray[np.uint8]] = lambda n: np.empty(n, np.uint8)
    """Function that allocates host memory for plans that are copied to a GPU."""
    places: I64 = field(init=False)
    """[N] First element of each file on a GPU."""
    isolation: Isolation | None = field(init=False)
    """Processes for decoders that must not run in this one."""

    def __post_init__(self) -> None:
        self.isolation = self.ctx.isolation

    @property
    def in_process(self) -> bool:
        """Whether built-in decoders of formats other than JPEG may run in this process."""
        return self.isolation is None or not self.isolation.jpeg

    @property
    def bgr(self) -> bool:
        """Whether the output is BGR."""
        return self.rules.output_type is DALIImageType.BGR

    def anchor(self, i: int) -> tuple[int, int] | None:
        """Return the corner (y, x) of the window of image ``i``, or None for the whole image."""
        return None if self.anchors is None else (int(self.anchors[i, 0]), int(self.anchors[i, 1]))

    def sizes(self, indices: I64) -> I64:
        """Return the bytes of the files ``indices``."""
        found: I64 = self.batch.shapes[indices, 0].astype(np.int64)
        return found

    def has_shape(self, i: int, pixels: npt.NDArray[Any]) -> bool:
        """Return whether ``pixels`` have the size that the header of image ``i`` says, and for ANY_DATA also its
        channels."""
        h, headers = self.rules.output_type is DALIImageType.ANY_DATA, self.headers
        wanted = (headers.extents[i, 0], headers.extents[i, 1], headers.channels[i])
        return bool(pixels.shape[: 2 + h] == wanted[: 2 + h])


@dataclass(frozen=True, slots=True)
class Target:
    """Host memory into which images are decoded: a batch with one sample per image."""

    out: Batch
    images: I64 | None = None
    """Index of the image of each sample of ``out``, ascending; None: sample i is image i."""

    def places(self, indices: I64) -> I64:
        """Return the indices in ``out`` of the images ``indices``."""
        return indices if self.images is None else np.searchsorted(self.images, indices)

    def sample(self, i: int) -> int:
        """Return the index in ``out`` of image ``i``."""
        return i if self.images is None else int(np.searchsorted(self.images, i))

    def regions(self, job: DecodeJob, indices: I64) -> tuple[Any, ...]:
        """Return the arguments of native loops for the images ``indices``: windows, channels, whether the output is
        BGR, the memory, and origins and pitches of whole images in it."""
        places = self.places(indices)
        shapes = self.out.shapes[places].astype(np.int64)
        corners = np.zeros((len(shapes), 2), np.int64) if job.anchors is None else job.anchors[indices]
        windows = np.concatenate([corners, corners + shapes[:, :2]], axis=1)
        channels, pitches = np.ascontiguousarray(shapes[:, 2]), shapes[:, 1] * shapes[:, 2]
        origins = self.out.offsets[places] - corners[:, 0] * pitches - corners[:, 1] * channels
        return windows, channels, job.bgr, self.out.data, origins, pitches


@dataclass(slots=True)
class Outcome:
    """Results of decoding, which rows of the table fill in: errors, images with wrong headers, and counts for
    reports."""

    errors: dict[int, SampleError] = field(default_factory=dict)
    """Errors of images that are rejected, by index."""
    reshaped: list[int] = field(default_factory=list)
    """Images whose pixels have another shape than their headers say: they were not decoded."""
    decoded: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Number of images and seconds by the name of the row that decoded them."""


class Decoder(ABC):
    """A row of the table: one way to decode images. One instance serves all threads of the process."""

    name: str
    """Name of the row in reports."""
    on_threads = True
    """Whether the threads that work for a GPU run this row."""
    sure = False
    """Whether the row returns pixels of the size and channels that the header says, or leaves the image to other
    rows."""
    judges = False
    """Whether reports count the images that it rejects as decoded by it."""

    @property
    def ready(self) -> bool:
        """Whether the row can decode now; if not, the rows after it decode the images."""
        return True

    @abstractmethod
    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        """Return which of the good images ``indices`` the row supports, bool[len(indices)], by headers and rules."""

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        """Decode the images ``indices`` to ``target``. Return the images that other rows must decode; add errors to
        ``outcome``."""
        raise NotImplementedError


# -- the table --------------------------------------------------------------------------------------------------------


@cache
def host_rows() -> tuple[Decoder, ...]:
    """Return the rows that run in a thread of the CPU: those of the formats, then the libraries of the formats."""
    return (*rows_of(f.rows for f in FORMATS), *rows_of([".library"]))


def rows_of(modules: Iterable[str]) -> list[Any]:
    """Return the rows that ``modules`` of this room declare."""
    return [row for name in dict.fromkeys(filter(None, modules)) for row in import_module(name, __package__).ROWS]


@cache
def thread_rows() -> tuple[Decoder, ...]:
    """Return the rows that run in threads which work for a GPU."""
    return tuple(row for row in host_rows() if row.on_threads)


def deal(job: DecodeJob, indices: I64, rows: Sequence[Decoder]) -> list[I64]:
    """Return, for each row, the images of ``indices`` that it is the first to support."""
    dealt = [NO_IMAGES] * len(rows)
    for k, row in enumerate(rows):
        if not len(indices):
            break
        taken = row.takes(job, indices)
        if taken.all():
            dealt[k], indices = indices, NO_IMAGES
        elif taken.any():
            dealt[k], indices = indices[taken], indices[~taken]
    return dealt


def run(job: DecodeJob, dealt: Sequence[I64], target: Target, rows: Sequence[Decoder]) -> Outcome:
    """Let each row decode the images that were ``dealt`` to it, and those that earlier rows left, to ``target``."""
    outcome, handed = Outcome(), NO_IMAGES
    for row, some in zip(rows, dealt, strict=True):
        if len(handed):
            taken = row.takes(job, handed)
            some, handed = np.concatenate([some, handed[taken]]), handed[~taken]
        if not len(some):
            continue
        if not row.ready:
            handed = np.concatenate([handed, some])
            continue
        began, lost = time.perf_counter(), len(outcome.errors) + len(outcome.reshaped)
        left = row.decode(job, some, target, outcome)
        handed = np.concatenate([handed, left]) if len(left) else handed
        failed = 0 if row.judges else len(outcome.errors) + len(outcome.reshaped) - lost
        outcome.decoded[row.name] = len(some) - len(left) - failed, time.perf_counter() - began
    assert not len(handed), "the last row of the table refuses no image"
    return outcome
