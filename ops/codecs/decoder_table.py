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
"""Function that returns the window of each image that later operators use, as y0, x0, y1, x1, [N, 4]. Its argument is
the shapes of the decoded images, [N, 3]."""
NO_IMAGES: I64 = np.empty(0, np.int64)


@dataclass(slots=True)
class DecodeJob:
    """One batch of encoded images, with everything that decoders need to know about it. Created and changed by one call
    of a decoding operator; its decoding threads read the job."""

    ctx: Context
    """Context in which the decoding operator was called."""
    batch: Batch
    """Batch of the encoded images, in host memory."""
    headers: Headers
    rules: Rules
    anchors: I64 | None = None
    """Upper left corners (y, x) of the windows to decode, in the oriented images, [N, 2]; None for whole images."""
    shapes: I32 = field(init=False)
    """Shapes of the decoded images, or of their windows, [N, 3]. Set after the windows were chosen."""
    offsets: I64 = field(init=False)
    """Index in the output on a GPU of each decoded image's first element, [N]."""
    facts: Context | None = None
    """Context from which the compiled JPEG loops get cached facts about the data set, such as the Context of a fused
    operator; None for ``ctx``."""
    needed: Needed | None = None
    """Function that returns the window of each image that later operators use; other pixels need not be decoded. None
    if all pixels are used."""
    staging: Callable[[int], npt.NDArray[np.uint8]] = lambda n: np.empty(n, np.uint8)
    """Function that allocates host memory for decoding plans, which are then copied to a GPU."""
    places: I64 = field(init=False)
    """Index of each encoded file's first byte in GPU memory, [N]."""
    isolation: Isolation | None = field(init=False)
    """Worker processes for decoders that must not run in this process; None if there are no such decoders."""

    def __post_init__(self) -> None:
        self.isolation = self.ctx.services.isolation

    @property
    def in_process(self) -> bool:
        """Whether built-in decoders of formats other than JPEG may run in this process."""
        return self.isolation is None or not self.isolation.jpeg

    @property
    def bgr(self) -> bool:
        """Whether decoded images have their channels in the order blue, green, red."""
        return self.rules.output_type is DALIImageType.BGR

    def anchor(self, i: int) -> tuple[int, int] | None:
        """Return the upper left corner (y, x) of the window of image ``i``; None if the whole image is decoded."""
        return None if self.anchors is None else (int(self.anchors[i, 0]), int(self.anchors[i, 1]))

    def sizes(self, indices: I64) -> I64:
        """Return the sizes in bytes of the encoded files ``indices``."""
        found: I64 = self.batch.shapes[indices, 0].astype(np.int64)
        return found

    def has_shape(self, i: int, pixels: npt.NDArray[Any]) -> bool:
        """Return whether the decoded ``pixels`` have the height and width of the header of image ``i``. For ANY_DATA,
        the number of channels must also agree."""
        h, headers = self.rules.output_type is DALIImageType.ANY_DATA, self.headers
        wanted = (headers.extents[i, 0], headers.extents[i, 1], headers.channels[i])
        return bool(pixels.shape[: 2 + h] == wanted[: 2 + h])


@dataclass(frozen=True, slots=True)
class Target:
    """Host memory into which images are decoded, as a batch with one sample per image."""

    out: Batch
    images: I64 | None = None
    """Index in the batch of the image in each sample of ``out``, ascending. None if sample i holds image i."""

    def places(self, indices: I64) -> I64:
        """Return where the images ``indices`` are in ``out``: the indices of their samples."""
        return indices if self.images is None else np.searchsorted(self.images, indices)

    def sample(self, i: int) -> int:
        """Return where image ``i`` is in ``out``: the index of its sample."""
        return i if self.images is None else int(np.searchsorted(self.images, i))

    def regions(self, job: DecodeJob, indices: I64) -> tuple[Any, ...]:
        """Return arguments of compiled decoding loops for the images ``indices``: windows to decode, channels, whether
        the output is BGR, the output's memory, and two arrays that locate pixels in the output. The first has the index
        of each image's pixel (0, 0), even if it is outside the window; the second has the elements per row."""
        places = self.places(indices)
        shapes = self.out.shapes[places].astype(np.int64)
        corners = np.zeros((len(shapes), 2), np.int64) if job.anchors is None else job.anchors[indices]
        windows = np.concatenate([corners, corners + shapes[:, :2]], axis=1)
        channels, pitches = np.ascontiguousarray(shapes[:, 2]), shapes[:, 1] * shapes[:, 2]
        origins = self.out.offsets[places] - corners[:, 0] * pitches - corners[:, 1] * channels
        return windows, channels, job.bgr, self.out.data, origins, pitches


@dataclass(slots=True)
class Outcome:
    """Results of decoding a batch on the host: errors, images with wrong headers, and counts for reports. Each decoder
    adds its results."""

    errors: dict[int, SampleError] = field(default_factory=dict)
    """Errors of rejected images, by index in the batch."""
    reshaped: list[int] = field(default_factory=list)
    """Indices of images that were not decoded, because their pixels have another shape than the header says."""
    decoded: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Number of decoded images and seconds of decoding, by decoder (its name in reports)."""


class Decoder(ABC):
    """One way to decode images, such as a library or a compiled loop. Decoders form a table and are tried in order. One
    instance serves all threads of the process."""

    name: str
    """Name of this decoder in reports."""
    on_threads = True
    """Whether this decoder also runs in CPU threads while a GPU decodes other images of the batch."""
    sure = False
    """Whether this decoder never returns pixels whose size or channels differ from the header: it leaves such images to
    later decoders."""
    judges = False
    """Whether reports count the images that this decoder rejects as decoded by it."""

    @property
    def ready(self) -> bool:
        """Return whether this decoder can decode now. If not, for example because it is still being compiled, other
        decoders decode its images."""
        return True

    @abstractmethod
    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        """Return which of the images ``indices`` this decoder supports, bool[len(indices)], by their headers (all
        valid) and the operator's arguments."""

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        """Decode the images ``indices`` to ``target``, and add errors to ``outcome``. Return the images that this
        decoder could not decode, for other decoders."""
        raise NotImplementedError


# -- the table --------------------------------------------------------------------------------------------------------


@cache
def host_rows() -> tuple[Decoder, ...]:
    """Return the decoders that run on the CPU, in the order in which they are tried: first the built-in decoders of
    each format, then libraries."""
    return (*rows_of(f.rows for f in FORMATS), *rows_of([".library"]))


def rows_of(modules: Iterable[str]) -> list[Any]:
    """Return the decoders listed in ``ROWS`` of ``modules``; module names are relative to this package."""
    return [row for name in dict.fromkeys(filter(None, modules)) for row in import_module(name, __package__).ROWS]


@cache
def thread_rows() -> tuple[Decoder, ...]:
    """Return the decoders that can run in CPU threads while a GPU decodes other images of the batch."""
    return tuple(row for row in host_rows() if row.on_threads)


def deal(job: DecodeJob, indices: I64, rows: Sequence[Decoder]) -> list[I64]:
    """Assign each of the images ``indices`` to the first of the decoders ``rows`` that supports it. Return the indices
    of each decoder's images."""
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
    """Decode a batch into ``target``. Each decoder of ``rows`` decodes the images that `deal` assigned to it
    (``dealt``), and then images that earlier decoders could not decode."""
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
