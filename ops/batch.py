"""Batch: a list of tensors of different shapes in one allocation; all data passes between operators in this form.

No method costs Python time per sample: each works on whole index arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .errors import MixedBatchError, MixedTypesError, RaggedError, SampleError

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_EPOCH_BITS = np.uint64(40)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Odd number (2^64 divided by the golden ratio) by which small numbers are multiplied, to spread them over 64 bits."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one sample comes from, as text for reports, reject logs and shard keys."""

    key: str
    """Name of the sample, unique in its data set, such as a file's path below the root, or an LMDB key."""
    source: str
    """File or container that contains the sample."""
    record: int = -1
    """Number of the record in the container; -1 for a file of its own."""
    offset: int = -1
    """Byte offset in the container; -1 if there is none."""
    named: str = field(default="", compare=False)
    """The sample's ``source_info`` in DALI, such as a listed file name. Empty if `source_info` can derive it from the
    other fields."""

    @property
    def source_info(self) -> str:
        """Origin of the sample as DALI reports it: the listed file name, or the container and a position. Empty for
        samples that no reader produced."""
        if self.named or self.record < 0:
            return self.named or self.source
        return f"{self.source} at index {self.record if self.offset < 0 else self.offset}"


@runtime_checkable
class Origins(Protocol):
    """Provider of the origin of each record in a data set; implemented by readers."""

    def origin(self, index: int) -> Origin:
        """Return where record ``index`` of the data set came from."""
        ...


class BatchedOrigins:
    """Base of data sets that return the origins of many records in one call."""

    def origins_of(self, index: I64) -> list[Origin]:
        """Return where each of the records ``index`` came from."""
        raise NotImplementedError

    def origin(self, index: int) -> Origin:
        """Return where record ``index`` came from."""
        return self.origins_of(np.array([index], np.int64))[0]


def origins_of(origins: Origins, index: I64) -> list[Origin]:
    """Return where each of the records ``index`` came from, with one call if the data set supports that."""
    if isinstance(origins, BatchedOrigins):
        return origins.origins_of(index)
    return [origins.origin(i) for i in index.tolist()]


class NoOrigins:
    """Origins of samples that no reader produced, such as arrays of the user's program."""

    def origin(self, index: int) -> Origin:
        return Origin(key=f"{index:09d}", source="")


def part_key(key: str, part: int) -> str:
    """Return the key of item ``part`` of the record ``key``, such as ``a/b-000003.mp4`` for item 3 of ``a/b.mp4``."""
    before, after = _halves(key.encode("utf-8", "surrogateescape"))
    return (b"%b-%06d%b" % (before, part, after)).decode("utf-8", "surrogateescape")


def _halves(key: bytes) -> tuple[bytes, bytes]:
    """Split the key of a record before its suffix, where `part_key` inserts the number of an item."""
    folder, slash, name = key.rpartition(b"/")
    stem, dot, extension = name.partition(b".")
    return folder + slash + stem, dot + extension


@dataclass(frozen=True, slots=True)
class Samples:
    """Identities of a batch's samples: parallel arrays with one entry per sample. Batches of the same samples share one
    such object. Everything that operators draw or report depends on these identities, never on the index in the batch:
    part of a batch gives equal results when it runs alone, for example on a retry or in a chunk on a thread."""

    slot: I32
    """Index of each sample in its iteration (one batch of the pipeline), before any were dropped, int32[N]. The
    branches of a conditional are merged by this index."""
    position: I64
    """Number of each sample in the order of processing, counted over all epochs, int64[N]. Output shards and
    checkpoints refer to these numbers."""
    epoch: I64
    index: I64
    """Record number of each sample in the data set, int64[N]. The random numbers of a sample depend on seed, operator,
    epoch and this number."""
    origins: Origins = field(default_factory=NoOrigins)
    part: I32 | None = None
    """Number of each sample in its record, from 0, int32[N], if records were split into items (such as videos into
    clips). None for whole records."""
    _keys: U64 | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def keys(self) -> U64:
        """Return the keys of the random streams, uint64[N]: epoch and index joined in one number. Do not modify."""
        if self._keys is None:
            keys = (self.epoch.view(np.uint64) << _EPOCH_BITS) ^ self.index.view(np.uint64)
            if self.part is not None:
                keys += (self.part.astype(np.uint64) + np.uint64(1)) * _GOLDEN
            object.__setattr__(self, "_keys", keys)  # computed once: several operators draw for the same samples
            return keys
        return self._keys

    def take(self, where: npt.NDArray[Any] | slice) -> Samples:
        """Return the samples at ``where`` (indices, a mask, or a slice)."""
        part = None if self.part is None else self.part[where]
        return Samples(self.slot[where], self.position[where], self.epoch[where], self.index[where], self.origins, part)

    def origin(self, i: int) -> Origin:
        """Return where sample ``i`` of this batch came from."""
        origin = self.origins.origin(int(self.index[i]))
        return origin if self.part is None else replace(origin, key=part_key(origin.key, int(self.part[i])))

    def all_origins(self) -> list[Origin]:
        """Return where each sample of this batch came from."""
        found = origins_of(self.origins, self.index)
        if self.part is None:
            return found
        return [replace(o, key=part_key(o.key, k)) for o, k in zip(found, self.part.tolist(), strict=True)]

    def names(self) -> list[bytes]:
        """Return the keys of all samples (`origin`), in UTF-8."""
        part = self.part
        if part is None:
            return self._names_of(self.index)
        first = np.flatnonzero(np.diff(self.index, prepend=self.index[:1] - 1))  # items of a record are consecutive
        halves = [_halves(name) for name in self._names_of(self.index[first])]
        record = np.repeat(np.arange(len(first)), np.diff(first, append=len(part)))
        return [b"%b-%06d%b" % (halves[r][0], k, halves[r][1])
                for r, k in zip(record.tolist(), part.tolist(), strict=True)]  # fmt: skip

    def _names_of(self, index: I64) -> list[bytes]:
        told = getattr(self.origins, "keys", None)  # data sets may have the keys without creating an Origin for each
        if told is not None:
            return list(told(index))
        return [self.origins.origin(i).key.encode("utf-8", "surrogateescape") for i in index.tolist()]

    @staticmethod
    def numbered(n: int, start: int = 0) -> Samples:
        """Return ``n`` anonymous samples of epoch 0, numbered from ``start``."""
        at = np.arange(start, start + n, dtype=np.int64)
        return Samples.of_epoch_0(np.arange(n, dtype=np.int32), np.zeros(n, np.int64), at)

    @staticmethod
    def of_epoch_0(slot: I32, zeros: I64, index: I64, origins: Origins | None = None) -> Samples:
        """Return samples of epoch 0 whose positions equal their record numbers ``index``, which are then also the keys
        of the random streams."""
        made = Samples(slot, index, zeros, index, NoOrigins() if origins is None else origins)
        object.__setattr__(made, "_keys", index.view(np.uint64))
        return made


class Parsed(Protocol):
    """Facts parsed from the bytes of a batch, such as headers of files. They are cached with the batch, so that its
    bytes are parsed only once."""

    def take(self, where: npt.NDArray[Any] | slice) -> Parsed:
        """Return the facts of the samples at ``where`` (indices, a mask, or a slice)."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """N tensors of one dtype and number of dimensions, possibly of different shapes.

    ``data`` is one flat array, NumPy (host) or CuPy (device); sample ``i`` is the C-contiguous block of
    ``prod(shapes[i])`` elements that starts at element ``offsets[i]``. There may be gaps (for example the framing bytes
    of a file) and overlaps (``take`` copies nothing). ``offsets`` and ``shapes`` are always in host memory.
    """

    data: Any
    """All elements, as a flat array of NumPy or CuPy."""
    offsets: I64
    """Index in ``data`` of each sample's first element, int64[N]."""
    shapes: I32
    """Shape of each sample, int32[N, ndim]."""
    layout: str
    """Layout: one letter per dimension (``HWC``, ``FHWC``, ``CHW``); empty if there is none."""
    samples: Samples
    """Identities of the N samples."""
    _nbytes: int = field(default=-1, init=False, repr=False, compare=False)
    _extents: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """Shape of one sample, for a batch without samples; None if unknown."""
    _parsed: Parsed | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.offsets) == len(self.shapes) == len(self.samples.slot):
            raise ValueError(
                f"a batch needs one offset, shape and sample each, got {len(self.offsets)}, {len(self.shapes)} "
                f"and {len(self.samples)}"
            )

    # -- properties ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def ndim(self) -> int:
        return int(self.shapes.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    @property
    def on_host(self) -> bool:
        return isinstance(self.data, np.ndarray)

    @property
    def sizes(self) -> I64:
        """Number of elements of each sample, int64[N]."""
        if self.shapes.shape[1] < 2:  # np.prod takes longer than all other work on small batches
            return np.ones(len(self.shapes), np.int64) if self.ndim == 0 else self.shapes[:, 0].astype(np.int64)
        return elements(self.shapes)

    @property
    def nbytes(self) -> int:
        """Size of all samples in bytes, without gaps between them."""
        if self._nbytes < 0:  # counted once: statistics and memory accounting read it again and again
            n, ndim = self.shapes.shape
            if n == 1:  # for a batch of one sample, overhead dominates
                count = math.prod(self.shapes[0].tolist())
            else:
                count = n if ndim == 0 else int(np.add.reduce(self.shapes if ndim == 1 else self.sizes, axis=None))
            object.__setattr__(self, "_nbytes", count * self.dtype.itemsize)
        return self._nbytes

    @property
    def is_uniform(self) -> bool:
        """Whether all samples have the same shape."""
        # compared as bytes, because every batch of a training loop takes this path: NumPy takes four times as long
        n, raw = len(self.shapes), self.shapes.tobytes()
        return n > 0 and raw == raw[: len(raw) // n] * n

    @property
    def is_packed(self) -> bool:
        """Whether the samples follow each other without gaps."""
        if len(self.offsets) < 2:
            return True
        sizes = self.sizes
        return bool((self.offsets[1:] == self.offsets[:-1] + sizes[:-1]).all())

    @property
    def parsed(self) -> Parsed | None:
        """Facts that `keep_parsed` cached for these bytes; None if there are none yet."""
        return self._parsed

    def keep_parsed(self, parsed: Parsed) -> None:
        """Cache the facts that were parsed from the bytes of all samples, for this batch and those derived from it.
        Several threads may call this method at the same time, because their facts are equal."""
        object.__setattr__(self, "_parsed", parsed)

    def sample(self, i: int) -> Any:
        """Return sample ``i`` as an array view of its shape."""
        shape = tuple(int(d) for d in self.shapes[i])
        start = int(self.offsets[i])
        return self.data[start : start + math.prod(shape)].reshape(shape)

    def __iter__(self) -> Iterator[Any]:
        return (self.sample(i) for i in range(len(self)))

    def dense(self) -> Any:
        """Return the batch as one array (N, *shape); a view if samples are packed.

        Raises ValueError, with the first two shapes that differ, for a ragged batch.
        """
        data, start, shape = self.block()
        return data[start : start + math.prod(shape)].reshape(shape)

    def block(self) -> tuple[Any, int, tuple[int, ...]]:
        """Return the elements of `dense` without copying them: the flat array, the index of their first element in it,
        and their shape (N, *shape). Raises ValueError like `dense`."""
        n = len(self.offsets)
        if n == 0:
            return self.data, 0, (0, *(self._extents or (0,) * self.ndim))
        if not self.is_uniform:
            odd = int(np.flatnonzero((self.shapes != self.shapes[0]).any(axis=1))[0])
            raise RaggedError(
                f"samples differ in shape: {tuple(map(int, self.shapes[0]))} for {self.samples.origin(0).key!r}, "
                f"{tuple(map(int, self.shapes[odd]))} for {self.samples.origin(odd).key!r}; resize, crop or pad them "
                "to one shape first"
            )
        shape, start = self.shapes[0].tolist(), int(self.offsets[0])
        size = math.prod(shape)
        if self.offsets.tobytes() == np.arange(start, start + n * size, size or 1).tobytes():  # as in is_uniform
            return self.data, start, (n, *shape)
        packed = self.packed()
        return packed.data, int(packed.offsets[0]), (n, *shape)

    # -- derived batches ------------------------------------------------------------------------------------

    def take(self, where: npt.NDArray[Any] | slice, samples: Samples | None = None) -> Batch:
        """Return the samples at ``where`` (indices, a mask, or a slice); the data is shared."""
        kept = self.samples.take(where) if samples is None else samples
        taken = Batch(self.data, self.offsets[where], self.shapes[where], self.layout, kept)
        if len(taken.offsets) == 0 and self.is_uniform:
            object.__setattr__(taken, "_extents", tuple(self.shapes[0].tolist()))
        if self._parsed is not None:
            object.__setattr__(taken, "_parsed", self._parsed.take(where))
        return taken

    def packed(self) -> Batch:
        """Return the samples without gaps or overlaps; the batch itself if it has none."""
        if self.is_packed:
            return self
        return concat([self.take(slice(i, i + 1)) for i in range(len(self))], self.samples)

    def replace(self, **changes: Any) -> Batch:
        """Return a copy with some fields replaced; the data is shared."""
        fields = {"data": self.data, "offsets": self.offsets, "shapes": self.shapes, "layout": self.layout,
                  "samples": self.samples}  # fmt: skip
        made = Batch(**{**fields, **changes})
        if self._extents is not None and "shapes" not in changes:
            object.__setattr__(made, "_extents", self._extents)
        if "shapes" not in changes and "data" not in changes:
            object.__setattr__(made, "_nbytes", self._nbytes)
            if "offsets" not in changes:
                object.__setattr__(made, "_parsed", self._parsed)
        return made

    def with_data(self, data: Any, samples: Samples, nbytes: int) -> Batch:
        """Return a batch of the same shapes with other ``data``, of ``nbytes`` bytes, and other ``samples``."""
        made = Batch(data, self.offsets, self.shapes, self.layout, samples)
        object.__setattr__(made, "_nbytes", nbytes)
        return made

    # -- construction ---------------------------------------------------------------------------------------------

    @staticmethod
    def sized(data: Any, offsets: I64, shapes: I32, layout: str, samples: Samples, elements: int) -> Batch:
        """Return a batch of ``elements`` elements in total, as counted by the caller. Counting them here would release
        the GIL seven times, and the thread that launches kernels would wait for the GIL."""
        made = Batch(data, offsets, shapes, layout, samples)
        object.__setattr__(made, "_nbytes", elements * made.dtype.itemsize)
        return made

    @staticmethod
    def from_dense(array: Any, layout: str, samples: Samples) -> Batch:
        """Return a batch over ``array`` (N, *shape), NumPy or CuPy; a view if the array is C-contiguous."""
        n, shape = array.shape[0], array.shape[1:]
        shapes = np.empty((n, len(shape)), np.int32)
        shapes[:] = shape
        size = math.prod(shape)
        offsets = np.arange(n, dtype=np.int64)
        if size != 1:
            offsets *= size
        made = Batch(array.reshape(-1), offsets, shapes, layout, samples)
        object.__setattr__(made, "_nbytes", n * size * array.dtype.itemsize)
        return made

    @staticmethod
    def from_list(arrays: Sequence[npt.NDArray[Any]], layout: str, samples: Samples, empty: Any = np.empty) -> Batch:
        """Return a batch that copies host ``arrays`` of one dtype and number of dimensions. ``empty(n, dtype)``
        allocates the flat array. Raises MixedTypesError if the arrays differ in dtype or number of dimensions, and
        ValueError if there are none."""
        if len(arrays) == 0:
            raise ValueError("an empty list has no dtype; use Batch.allocate")
        first, found = arrays[0], {a.shape for a in arrays}
        if len({a.dtype for a in arrays}) > 1 or len({len(shape) for shape in found}) > 1:
            other = next(a for a in arrays if a.ndim != first.ndim or a.dtype != first.dtype)
            raise MixedTypesError(
                f"samples of a batch share dtype and number of dimensions: {first.dtype}, {first.ndim}-D "
                f"and {other.dtype}, {other.ndim}-D"
            )
        shapes = np.empty((len(arrays), first.ndim), np.int32)
        shapes[:] = first.shape if len(found) == 1 else [a.shape for a in arrays]
        batch = Batch.allocate(empty, shapes, first.dtype, layout, samples)
        if len(found) == 1 and first.ndim:  # one view of the output for all, none of each array
            target = batch.data.reshape(len(arrays) * first.shape[0], *first.shape[1:])
            np.concatenate(arrays, out=target)
        else:
            np.concatenate([a.reshape(-1) for a in arrays], out=batch.data)
        return batch

    @staticmethod
    def allocate(empty: Any, shapes: I32, dtype: Any, layout: str, samples: Samples) -> Batch:
        """Return an uninitialised batch without gaps; ``empty(n, dtype)`` allocates its flat array (np.empty,
        ctx.empty)."""
        shapes = np.ascontiguousarray(shapes, np.int32)
        if len(shapes) == 1:  # for a batch of one sample, overhead dominates
            total = math.prod(shapes[0].tolist())
            return Batch(empty(total, np.dtype(dtype)), np.zeros(1, np.int64), shapes, layout, samples)
        offsets, total = packed_places(shapes)
        return Batch.sized(empty(total, np.dtype(dtype)), offsets, shapes, layout, samples, total)


def packed_places(shapes: I32) -> tuple[I64, int]:
    """Return the offsets of samples of these shapes, stored one after the other, and their total number of elements."""
    sizes = elements(shapes)
    ends = sizes.cumsum()
    return ends - sizes, int(ends[-1]) if len(ends) else 0


_ALIGNMENT, _LARGE = 64, 4096


def host_empty(n: int, dtype: Any) -> npt.NDArray[Any]:
    """Return an uninitialised flat array in host memory. A large array begins at a multiple of 64 bytes, which makes
    vector instructions faster, and which JAX requires of memory that it uses without copying."""
    size = n * np.dtype(dtype).itemsize
    if size < _LARGE:
        return np.empty(n, dtype)
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -address(raw) % _ALIGNMENT
    return raw[start : start + size].view(dtype)


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of the first element of a host array."""
    found: int = array.__array_interface__["data"][0]
    return found


MAX_LENGTH = 2**31 - 1
"""Maximum length of an axis of a sample, in elements."""
MAX_AXES = 32
"""Maximum number of axes of a sample; NumPy supports 64 from version 2 on, CuPy 32."""


def check_extents(extents: Sequence[int], itemsize: int) -> None:
    """Raise SampleError if no array can have the shape ``extents`` that a file's header declares: a length is negative,
    there are too many axes, or the array is too large. NumPy cannot even make an empty array of (2**40, 2**40, 0)."""
    if any(d < 0 or isinstance(d, bool) for d in extents):
        raise SampleError("corrupt_record", f"the header claims the shape {_shown(extents)}")
    if len(extents) > MAX_AXES:
        raise SampleError("bad_shape", f"the header claims {len(extents)} axes; up to {MAX_AXES} are read")
    beyond = max(extents, default=0) > MAX_LENGTH
    if beyond or math.prod(d for d in extents if d) * itemsize > MAX_SAMPLE_BYTES:
        raise SampleError("too_large", f"the header claims the shape {_shown(extents)}; axes may have up to "
                          f"{MAX_LENGTH:,} elements, and arrays {MAX_SAMPLE_BYTES:,} bytes")  # fmt: skip


MAX_SAMPLE_BYTES = 2**62
"""Maximum bytes of one sample; lengths of 0 count as 1."""


def _shown(extents: Sequence[int]) -> str:
    text = str(tuple(extents))
    return text if len(text) <= 80 else f"{text[:77]}..."


def elements(shapes: npt.NDArray[Any]) -> I64:
    """Return the number of elements of each sample, int64[N], for ``shapes`` [N, D]."""
    counts: I64
    if len(shapes) <= 64 or shapes.shape[1] == 0:
        counts = np.multiply.reduce(shapes, axis=1, dtype=np.int64)  # half the time of np.prod on small batches
        return counts
    if len(shapes) <= _MAX_KEYED_SAMPLES:
        return _cached_elements(shapes.dtype, shapes.shape, shapes.tobytes()).copy()
    return _products(shapes)


def _products(shapes: npt.NDArray[np.integer]) -> I64:
    counts = shapes[:, 0].astype(np.int64)
    for k in range(1, shapes.shape[1]):  # column by column: a quarter of the time of row by row on large batches
        counts *= shapes[:, k]
    return counts


_MAX_KEYED_SAMPLES = 1024


@lru_cache(64)
def _cached_elements(dtype: np.dtype[np.integer], shape: tuple[int, int], content: bytes) -> I64:
    """Compute `elements`, cached for the latest shapes: the engine asks for the same ones a dozen times per batch."""
    return _products(np.frombuffer(content, dtype).reshape(shape))


def concat(batches: Sequence[Batch], samples: Samples | None = None, empty: Any = None) -> Batch:
    """Return one packed batch of all samples of ``batches``, in order, in the memory (host or device) of the first
    one.

    ``samples`` are the identities of the result; by default those of ``batches``, one after the other. Consecutive
    samples without gaps are copied as one block. ``empty(n, dtype)`` allocates the flat array.
    """
    if not batches:
        raise ValueError("nothing to concatenate")
    if samples is None:
        samples = concat_samples([b.samples for b in batches])
    live = [b for b in batches if len(b)]
    model = live[0] if live else batches[0]
    for b in live:
        if b.dtype != model.dtype or b.ndim != model.ndim:
            raise MixedBatchError(
                f"the samples of one batch differ: {model.samples.origin(0).key!r} is {model.dtype}, {model.ndim}-D, "
                f"{b.samples.origin(0).key!r} is {b.dtype}, {b.ndim}-D; convert them to one type and number of "
                "dimensions, or declare it"
            )
    if len(live) == 1 and live[0].is_packed:
        return live[0].replace(samples=samples)
    shapes = np.concatenate([b.shapes for b in live]) if live else model.shapes[:0]
    out = Batch.allocate(empty or _empty_like(model.data), shapes, model.dtype, model.layout, samples)
    at = 0
    for b in live:
        sizes = b.sizes
        breaks = np.flatnonzero(b.offsets[1:] != b.offsets[:-1] + sizes[:-1]) + 1
        starts, stops = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(b)]))
        for lo, hi in zip(starts.tolist(), stops.tolist(), strict=True):
            n = int(sizes[lo:hi].sum())
            out.data[at : at + n] = b.data[int(b.offsets[lo]) : int(b.offsets[lo]) + n]
            at += n
    return out


def concat_samples(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all ``parts``, one after the other. All parts are of one data set."""
    if len(parts) == 1:
        return parts[0]
    return Samples(
        np.concatenate([p.slot for p in parts]),
        np.concatenate([p.position for p in parts]),
        np.concatenate([p.epoch for p in parts]),
        np.concatenate([p.index for p in parts]),
        parts[0].origins,
        None if parts[0].part is None else np.concatenate([p.part for p in parts if p.part is not None]),
    )


def _empty_like(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return host_empty
    import cupy

    return cupy.empty
