"""readers.lmdb, readers.caffe, readers.caffe2: read records of LMDB databases, whole or parsed by a schema.

The database is read without the LMDB library: its pages are scanned once, and values are views of the mapped file.
Nothing may write to the database meanwhile.
"""

from __future__ import annotations

import fnmatch
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.context import Context
from ..ops.errors import JobError, RejectCode, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.storage.urls import join
from ..ops.types import DALIDataType
from .base import Reader
from .fetch import index_cache
from .fetch.extents import MAX_RECORD, U8, Groups, Mapped, expand, in_utf8, one_or_more, payload, short_names
from .fetch.remote import is_folder
from .join.reader import JoiningReader
from .records.example import RecordParser, Wire, declared

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_VERSION = 1  # version of the cached index's layout
_BLOCK = 1 << 16
_THREADS = 16
_MAGIC, _EMPTY = 0xBEEFC0DE, 2**64 - 1


@dataclass(frozen=True, slots=True)
class _Meta:
    """Fields of the newest meta page (root page of a commit) of an LMDB database."""

    page_size: int
    root: int
    entries: int
    transaction: int


def _meta_of(page: bytes, page_size: int) -> _Meta | str | None:
    """Return the contents of a meta page, or the reason why its database cannot be read. None if it is not a meta page
    of a database with pages of ``page_size`` bytes."""
    magic, version = struct.unpack_from("<II", page, 16)
    if magic != _MAGIC:
        return None
    if version != 1:
        return f"its format is {version}; only format 1 (LMDB 0.9) is supported; copy it with LMDB 0.9's mdb_copy"
    (pad,) = struct.unpack_from("<I", page, 40)
    _, flags, _, _, _, _, entries, root, _, transaction = struct.unpack_from("<IHHQQQQQQQ", page, 88)
    if pad != page_size:
        return None
    if flags & 0x34:  # DUPSORT, DUPFIXED, INTEGERDUP
        return "keys have several values (DUPSORT), which is not supported"
    return _Meta(page_size, root, entries, transaction)


def _meta(path: str, data: U8, start: int, size: int) -> _Meta:
    """Return the newest meta page of the database ``data[start : start + size]``. Raises JobError unless there are two:
    the missing one may be that of the last commit, and the records of that commit would be lost."""
    found: list[_Meta] = []
    problem = ""
    for page_size in (4096, 8192, 16384, 32768, 65536, 2048, 1024, 512):  # the second meta page is the second page
        for at in (0, page_size):
            page = data[start + at : start + at + 152].tobytes() if at + 152 <= size else b""
            meta = _meta_of(page, page_size) if page else None
            if isinstance(meta, _Meta):
                found.append(meta)
            problem = meta if isinstance(meta, str) else problem
        if found:
            break
    if not found:
        raise JobError(f"{path}: byte 0: cannot be read as LMDB: {problem or 'no page is a meta page of LMDB'}")
    if len(found) == 1:
        raise JobError(f"{path}: cannot be read as LMDB: one of its two meta pages is damaged or cut off")
    return max(found, key=lambda m: m.transaction)


def _walk(mapped: Mapped, i: int) -> tuple[I64, int]:
    """Scan database ``i``. Return a row (key offset, key size, value offset, value size, kind) per record, and the
    database's page size."""
    start, size = int(mapped.starts[i]), int(mapped.sizes[i])
    meta = _meta(mapped.paths[i], mapped.data, start, size)
    if meta.root == _EMPTY:
        return np.empty((0, 5), np.int64), meta.page_size
    version = (_VERSION << 48) ^ (meta.transaction & 0xFFFFFFFFFFFF)
    key = (version, int(mapped.stored[i]), int(mapped.mtimes[i]))
    if not mapped.unpacked[i]:
        cached = index_cache.load(mapped.local[i], "lmdb", *key, columns=5)
        if cached is not None and len({len(c) for c in cached}) == 1:
            rows = np.stack(cached, axis=1)
            if _inside(rows, size):
                return rows, meta.page_size
    from .lmdb_cpu import MAX_DEPTH, walk

    visited = np.zeros(size // meta.page_size + 1, np.uint8)
    stack = np.zeros(2 * MAX_DEPTH + 1, np.int64)
    root = meta.root if meta.root < 2**63 else -1
    blocks: list[I64] = []
    while not blocks or (len(blocks[-1]) == _BLOCK and stack[0] > 0):
        block = np.empty((_BLOCK, 5), np.int64)
        blocks.append(block[: walk(mapped.data, start, size, meta.page_size, root, visited, block, stack)])
    rows = np.concatenate(blocks)
    if not mapped.unpacked[i]:
        index_cache.store(mapped.local[i], "lmdb", *key, columns=list(rows.T))
    return rows, meta.page_size


def _inside(rows: I64, size: int) -> bool:
    """Whether all offsets in the ``rows`` of a cached index are inside their file, of ``size`` bytes."""
    low, lengths = rows[:, [0, 2]], rows[:, [1, 3]]
    good = (low >= 0) & (lengths >= 0) & (low <= size) & (lengths <= size - low)
    return bool((good.all(axis=1) | (rows[:, 4] == 2)).all())


class Schema(Protocol):
    """Protocol of a schema: it parses the values of records into the reader's outputs."""

    specs: tuple[Spec, ...]

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: Mask) -> tuple[Batch, ...]:
        """Return one batch per output from ``data[offsets[i] : offsets[i] + sizes[i]]``; see `RecordParser.parse`."""
        ...


class _LmdbRecords(BatchedOrigins):
    """Data set of the readers `LMDB`, `Caffe` and `Caffe2`, opened: the records of all databases, by number."""

    def __init__(
        self, path: str | tuple[str, ...], schema: Schema, keys: tuple[str, ...] | None = None, prefixed: bool = True
    ) -> None:
        self.folders = expand(one_or_more(path))
        files = [join(p, "data.mdb") if is_folder(p) else p for p in self.folders]
        self._mapped = Mapped(files, named=self.folders)
        self._schema = schema
        self._prefixed = prefixed and len(files) > 1
        with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
            walked = list(pool.map(self._walked, range(len(files))))
        rows = [r for r, _, _ in walked]
        if keys is not None:
            rows = [self._matching(r, i, keys) for i, r in enumerate(rows)]
        self._rows = np.concatenate(rows)
        self._page_sizes = np.array([size for _, size, _ in walked], np.int64)
        self._damage = {i: problem for i, (_, _, problem) in enumerate(walked) if problem}
        self._files = Groups(np.array([len(r) for r in rows], np.int64))
        self.groups: I64 | None = self._files.counts
        self._starts: list[int] = self._mapped.starts.tolist()
        self._names = short_names(self.folders)
        if len(self._rows) and (self._rows[:, 4] != 0).all():
            message = self._why(0, int(self._rows[0, 4]))[1]
            file = self._files.locate(0)[0]
            whole = file in self._damage  # the message then names the file
            raise JobError(message if whole else f"{files[file]}: byte {int(self._rows[0, 2])}: {message}")

    def _walked(self, i: int) -> tuple[I64, int, str]:
        """Like `_walk`, and also return an error message, or an empty text. A database that cannot be read at all gives
        a single record, which is rejected."""
        try:
            return *_walk(self._mapped, i), ""
        except JobError as e:
            return np.array([[0, 0, 0, 0, 2]], np.int64), 4096, str(e)

    def _matching(self, rows: I64, i: int, keys: tuple[str, ...]) -> I64:
        match = re.compile("|".join(fnmatch.translate(k) for k in keys).encode()).match
        start = int(self._mapped.starts[i])
        data = self._mapped.data
        keep = [k == 2 or bool(match(data[start + a : start + a + n].tobytes())) for a, n, _, _, k in rows.tolist()]
        return rows[np.array(keep, np.bool_)]

    def __len__(self) -> int:
        return len(self._rows)

    def origins_of(self, index: I64) -> list[Origin]:
        found = []
        files, data = self._files.files(index).tolist(), self._mapped.data
        for file, i, (at, size, value, _, kind) in zip(files, index.tolist(), self._rows[index].tolist(), strict=True):
            start, record = self._starts[file], i - int(self._files.firsts[file])
            if size:
                key = data[start + at : start + at + size].tobytes().decode("utf-8", "backslashreplace")
            else:
                key = f"record-{record:08d}" if kind != 2 else f"page-{value}"
            named = f"{self.folders[file]} at key {key}"
            key = f"{self._names[file]}/{key}" if self._prefixed else key
            found.append(Origin(key, self.folders[file], record, value, named))
        return found

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        files, rows, data = self._files.files(index), self._rows[index], self._mapped.data
        starts = (np.asarray(self._starts, np.int64)[files] + rows[:, 0]).tolist()
        sizes = rows[:, 1].tolist()
        names = [in_utf8(name) for name in self._names]
        found = [data[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]
        return [
            in_utf8(self.origin(i).key)
            if not key.isascii() or not key
            else b"%b/%b" % (names[f], key)
            if self._prefixed
            else key
            for f, i, key in zip(files.tolist(), index.tolist(), found, strict=True)
        ]

    def fingerprint(self) -> str:
        return self._mapped.fingerprint(self._names, self._rows)

    def inventory(self) -> InventoryEntries:
        return self._mapped.inventory(
            self._names, self._files.counts, "with folder" if len(self._names) > 1 else "plain"
        )

    def close(self) -> None:
        """Do nothing: the files stay mapped until the last batch that is a view of them is gone."""

    def _why(self, index: int, kind: int) -> tuple[RejectCode, str]:
        from . import lmdb_cpu as cpu

        damage = self._damage.get(self._files.locate(index)[0])
        if damage:
            return "corrupt_record", damage
        if kind == cpu.NOT_PLAIN:
            return "unsupported", "is a named database or a key with several values, not a record"
        if kind == cpu.BAD_PAGE:
            return "corrupt_record", "a page of the database is damaged; the records on it and below it are lost"
        if kind == cpu.BAD_OVERFLOW:
            return "corrupt_record", "the pages of the value are damaged"
        return "corrupt_record", "the record points outside the database"

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        from . import lmdb_cpu as cpu

        which = ctx.samples.index
        rows = self._rows.take(which, axis=0)
        files = self._files.files(which)
        starts = self._mapped.starts[files]
        offsets, sizes, kinds = (np.ascontiguousarray(rows[:, k]) for k in (2, 3, 4))
        self._mapped.will_need(ctx, starts + offsets, sizes)
        gone = self._mapped.truncated(starts + offsets)
        large = (sizes > MAX_RECORD) & (kinds == cpu.GOOD)
        kinds[gone | large] = cpu.BAD_NODE
        cpu.check_overflow(self._mapped.data, starts, self._page_sizes[files], offsets, sizes, kinds)
        good: Mask = kinds == cpu.GOOD
        for i in np.flatnonzero(~good).tolist():
            if gone[i]:
                ctx.reject(i, "read_failed", "the database was cut short while the job ran")
            elif large[i]:
                ctx.reject(i, "too_large", f"the value has {int(sizes[i])} bytes; at most {MAX_RECORD} are allowed")
            else:
                ctx.reject(i, *self._why(int(which[i]), int(kinds[i])))
        at = np.where(good, starts + offsets, 0)
        return self._schema.parse(ctx, self._mapped.data, at, np.where(good, sizes, 0), good)


# -- schemas ----------------------------------------------------------------------------------------------------------


class Raw:
    """Schema for values that are returned as their bytes, unparsed."""

    specs: tuple[Spec, ...] = (Spec((None,), DALIDataType.UINT8),)

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: Mask) -> tuple[Batch, ...]:
        return (payload(ctx, data, offsets, sizes),)


class Features:
    """Schema for values that are records of tf.train.Example or MessagePack: one output per requested feature."""

    def __init__(self, features: dict[str, Any], wire: Wire) -> None:
        self._parser = RecordParser.of(declared(features), wire)
        self.specs = tuple(f.spec for f in self._parser.features.values())

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: Mask) -> tuple[Batch, ...]:
        return self._parser.parse(ctx, data, offsets, sizes, good)


class Datum:
    """Schema for values that are Caffe's Datum: outputs are image and label."""

    def __init__(self, image: bool = True, label: bool = True, encoded: bool = True) -> None:
        self.image, self.label, self.encoded = image, label, encoded
        pixels = Spec((None, None, None), DALIDataType.UINT8, "CHW")
        specs = [Spec((None,), DALIDataType.UINT8) if encoded else pixels] if image else []
        self.specs = (*specs, Spec((1,), DALIDataType.INT32)) if label else tuple(specs)

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: Mask) -> tuple[Batch, ...]:
        from .records import datum_cpu as cpu

        found = np.empty((len(offsets), cpu.DATUM_COLUMNS), np.int64)
        status = np.where(good, cpu.OK, cpu.DAMAGED).astype(np.int32)
        cpu.read_datums(data, offsets, sizes, found, status)
        nbytes = found[:, cpu.DATA_STOP] - found[:, cpu.DATA]
        extents = found[:, cpu.CHANNELS : cpu.WIDTH + 1]
        # products of numbers that are not sizes must not wrap around to a plausible size
        sane = ((extents > 0) & (extents <= MAX_RECORD)).all(axis=1)
        fits = sane & (np.prod(extents.astype(np.float64), axis=1) == nbytes)
        odd = status != cpu.OK
        if self.label:
            odd |= found[:, cpu.HAS_LABEL] == 0
        if self.image:
            unlike = (found[:, cpu.ENCODED] == 0) if self.encoded else (found[:, cpu.ENCODED] == 1) | ~fits
            odd |= (found[:, cpu.HAS_DATA] == 0) | unlike
        for i in np.flatnonzero(good & odd).tolist():
            ctx.reject(i, *self._problem(status[i] == cpu.OK, found[i].tolist(), int(sizes[i])))
        good = good & ~odd
        at, nbytes = np.where(good, found[:, cpu.DATA], 0), np.where(good, nbytes, 0)
        out = []
        if self.image:
            images = payload(ctx, data, at, nbytes)
            if not self.encoded:
                shapes = np.where(good[:, None], extents, 0).astype(np.int32)
                images = images.replace(shapes=shapes, layout="CHW")
            out.append(images)
        if self.label:
            out.append(Batch.from_dense(found[:, cpu.LABEL : cpu.LABEL + 1].astype(np.int32), "", ctx.samples))
        return tuple(out)

    def _problem(self, parsed: bool, row: list[int], size: int) -> tuple[RejectCode, str]:
        from .records import datum_cpu as cpu

        if not parsed:
            return "corrupt_record", f"is no Caffe Datum: its {size} bytes do not parse"
        if self.label and not row[cpu.HAS_LABEL]:
            return "missing_feature", "the Datum has no label (label_available: false does without)"
        if not row[cpu.HAS_DATA]:
            return "missing_feature", "the Datum has no data (image_available: false does without)"
        if self.encoded:
            return "unsupported", "the Datum holds raw pixels, not an encoded image; set encoded: false"
        if row[cpu.ENCODED] == 1:
            return "unsupported", "the Datum holds an encoded image, not raw pixels; leave out encoded: false"
        c, h, w = row[: cpu.WIDTH + 1]
        return "bad_shape", f"the Datum's {row[cpu.DATA_STOP] - row[cpu.DATA]} bytes are not {c} x {h} x {w} pixels"


class Tensors:
    """Schema for values that are Caffe2's TensorProtos. Outputs: image, label by ``label_type``, further tensors,
    boxes."""

    def __init__(
        self, label_type: int, num_labels: int, additional: int, bbox: bool, image: bool, encoded: bool
    ) -> None:
        self._label_type, self._num_labels, self._encoded, self._image = label_type, num_labels, encoded, image
        self._labels = {0: 1, 1: 1, 2: 1, 3: 2, 4: 0}[label_type]  # number of tensors that make up the label
        self._further = additional + bbox
        self._additional = additional
        pixels = Spec((None, None, None), DALIDataType.UINT8, "HWC")
        specs = [Spec((None,), DALIDataType.UINT8) if encoded else pixels] if image else []
        width = {0: 1, 1: num_labels, 2: None, 3: num_labels, 4: None}[label_type]
        if label_type != 4:
            specs.append(Spec((width,), DALIDataType.FLOAT if label_type == 3 else DALIDataType.INT32))
        further = [Spec((None,), None)] * additional + [Spec((None,), DALIDataType.INT32)] * bbox
        self.specs = (*specs, *further)

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: Mask) -> tuple[Batch, ...]:
        from .records import datum_cpu as cpu

        n = len(offsets)
        wanted = self._image + self._labels + self._further
        found = np.empty((n, max(wanted, 1), cpu.TENSOR_COLUMNS), np.int64)
        counts = np.empty(n, np.int64)
        status = np.where(good, cpu.OK, cpu.DAMAGED).astype(np.int32)
        cpu.read_tensors(data, offsets, sizes, found, counts, status)
        good = good.copy()

        def refuse(bad: Mask, code: RejectCode, message: str) -> None:
            for i in np.flatnonzero(good & bad).tolist():
                ctx.reject(i, code, message)
                good[i] = False

        refuse(status != cpu.OK, "corrupt_record", "is no Caffe2 TensorProtos: its bytes do not parse")
        refuse(counts < wanted, "missing_feature", f"has fewer tensors than the {wanted} that are read")
        out: list[Batch] = []
        at = 0
        if self._image:
            out.append(self._pixels(ctx, data, found[:, 0], good, refuse))
            at = 1
        columns = [np.ascontiguousarray(found[:, k]) for k in range(at, wanted)]
        if self._labels:
            out.append(self._label(ctx, data, columns[: self._labels], good, refuse))
        for k, column in enumerate(columns[self._labels :]):
            kinds = column[good, cpu.TYPE]
            kind = int(kinds[0]) if len(kinds) and k < self._additional else cpu.INT32
            refuse(~np.isin(column[:, cpu.TYPE], (cpu.FLOAT, cpu.INT32)), "unsupported", f"tensor {k} has no numbers")
            refuse(column[:, cpu.TYPE] != kind, "unsupported", f"tensor {k} changes its type between records")
            out.append(self._numbers(ctx, data, column, good, np.float32 if kind == cpu.FLOAT else np.int32))
        return tuple(b.replace(shapes=np.where(good[:, None], b.shapes, 0)) for b in out)

    def _pixels(self, ctx: Context, data: U8, found: I64, good: Mask, refuse: Any) -> Batch:
        from .records import datum_cpu as cpu

        kind, nbytes = found[:, cpu.TYPE], found[:, cpu.STOP] - found[:, cpu.START]
        if self._encoded:
            refuse(kind != cpu.STRING, "unsupported", "the image is not an encoded one (a string); set encoded: false")
            refuse(found[:, cpu.COUNT] != 1, "bad_shape", "the image tensor holds no string, or several")
            return payload(ctx, data, np.where(good, found[:, cpu.START], 0), np.where(good, nbytes, 0))
        extents = found[:, cpu.DIM0 : cpu.DIM2 + 1]
        sane = ((extents > 0) & (extents <= MAX_RECORD)).all(axis=1) & (found[:, cpu.DIMS] == 3)
        fits = sane & (np.prod(extents.astype(np.float64), axis=1) == nbytes)
        refuse(kind != cpu.BYTE, "unsupported", "the image holds no raw bytes; leave out encoded: false")
        refuse(~fits, "bad_shape", "the image's dimensions are not height x width x channels of its bytes")
        images = payload(ctx, data, np.where(good, found[:, cpu.START], 0), np.where(good, nbytes, 0))
        return images.replace(shapes=np.where(good[:, None], extents, 0).astype(np.int32), layout="HWC")

    def _label(self, ctx: Context, data: U8, found: list[I64], good: Mask, refuse: Any) -> Batch:
        from .records import datum_cpu as cpu

        first = found[0]
        refuse(first[:, cpu.TYPE] != cpu.INT32, "unsupported", "the label tensor does not hold integers")
        if self._label_type == 0:
            refuse(first[:, cpu.COUNT] != 1, "bad_shape", "the label tensor does not hold one number")
        if self._label_type in (0, 2):
            return self._numbers(ctx, data, first, good, np.int32)
        if self._label_type == 3:
            refuse(found[1][:, cpu.TYPE] != cpu.FLOAT, "unsupported", "the weights of the labels are not numbers")
            refuse(found[1][:, cpu.COUNT] != first[:, cpu.COUNT], "bad_shape", "labels and weights differ in number")
        which = self._numbers(ctx, data, first, good, np.int64)
        weights = self._numbers(ctx, data, found[1], good, np.float32) if self._label_type == 3 else None
        n = len(first)
        out = np.zeros((n, self._num_labels), np.int32 if weights is None else np.float32)
        rows = np.repeat(np.arange(n), which.sizes)
        outside = (which.data < 0) | (which.data >= self._num_labels)
        if outside.any():
            message = f"a label is not below num_labels ({self._num_labels})"
            refuse(np.isin(np.arange(n), rows[outside]), "bad_argument", message)
        out[rows[~outside], which.data[~outside]] = 1 if weights is None else weights.data[~outside]
        return Batch.from_dense(out, "", ctx.samples)

    @staticmethod
    def _numbers(ctx: Context, data: U8, found: I64, good: Mask, dtype: Any) -> Batch:
        from .records import datum_cpu as cpu

        found = found.copy()
        found[~good] = 0
        counts = found[:, cpu.COUNT]
        ends = np.cumsum(counts)
        values = np.empty(int(ends[-1]) if len(ends) else 0, np.float64)
        cpu.read_numbers(data, found, ends - counts, values)
        shapes = counts.astype(np.int32).reshape(-1, 1)
        return Batch(values.astype(dtype), ends - counts, shapes, "", ctx.samples)


# -- the operators ----------------------------------------------------------------------------------------------------


class LMDB(JoiningReader, name="readers.lmdb"):
    """Read the records of LMDB databases, in the order of their keys.

    Outputs by ``schema``: raw gives the value's bytes; datum gives bytes and label; example and msgpack give one output
    per feature. Features of msgpack are the entries of a map by name, or of an array by number ("0", "1").
    """

    maps_files = True
    example = "{op: readers.lmdb, path: ./train_lmdb, schema: datum, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("database folders or files, or patterns of them")]
    schema: Annotated[Literal["raw", "datum", "example", "msgpack"], Arg("format of the values")] = "raw"
    features: Annotated[dict[str, Any] | None, Arg("for example and msgpack: features, as in readers.tfrecord")] = None
    keys: Annotated[tuple[str, ...] | None, Arg("patterns of the keys to read; None for all records")] = None
    encoded: Annotated[bool, Arg("schema datum: images are encoded files; false: raw pixels, CHW")] = True
    prefix_keys: Annotated[
        bool, Arg("put the database's name before each key if there are several; false: their keys differ already")
    ] = True

    def _schema(self) -> Schema:
        if self.schema == "example" or self.schema == "msgpack":
            if not self.features:
                raise SpecError(f"schema {self.schema} needs features")
            return Features(self.features, self.schema)
        if self.features is not None:
            raise SpecError(f"features belong to schemas example and msgpack, not {self.schema}")
        return Raw() if self.schema == "raw" else Datum(encoded=self.encoded)

    def check(self) -> None:
        super().check()
        check_path(self.path)
        self._schema()
        if not self.encoded and self.schema != "datum":
            raise SpecError(f"encoded belongs to schema datum, not {self.schema}")

    @property
    def own_outputs(self) -> int:
        return len(self._schema().specs)

    def own_specs(self) -> tuple[Spec, ...]:
        return self._schema().specs

    def open_records(self) -> _LmdbRecords:
        return _LmdbRecords(self.path, self._schema(), self.keys, self.prefix_keys)


class Caffe(Reader, name="readers.caffe"):
    """Read images and labels from Caffe's LMDBs (Datum).

    Outputs: bytes (uint8, 1-D) and label (int32, shape (1,)). Raw pixels (``encoded: false``) keep Caffe's layout, CHW;
    DALI labels the same bytes HWC.
    """

    maps_files = True
    aliases = ("caffe_reader", "readers._caffe")
    example = "{op: readers.caffe, path: ./train_lmdb, random_shuffle: true, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("database folders or files, or patterns of them")]
    image_available: Annotated[bool, Arg("output the image")] = True
    label_available: Annotated[bool, Arg("output the label")] = True
    encoded: Annotated[bool, Arg("images are encoded files; false: raw pixels, CHW")] = True

    def _schema(self) -> Datum:
        return Datum(self.image_available, self.label_available, self.encoded)

    def check(self) -> None:
        super().check()
        check_path(self.path)
        if not self.image_available and not self.label_available:
            raise SpecError("has no output: set image_available or label_available to true")

    @property
    def num_outputs(self) -> int:
        return self.image_available + self.label_available

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return self._schema().specs

    def open(self) -> _LmdbRecords:
        return _LmdbRecords(self.path, self._schema())


class Caffe2(Reader, name="readers.caffe2"):
    """Read tensors from Caffe2's LMDBs (TensorProtos).

    Outputs: image bytes (uint8, 1-D), label, then ``additional_inputs`` tensors and the box. ``label_type``: 0 one
    integer; 1 the labels of num_labels that are set (0 or 1 each); 2 integers as stored; 3 weights of some of
    num_labels; 4 none.
    """

    maps_files = True
    aliases = ("caffe2_reader", "readers._caffe2")
    example = "{op: readers.caffe2, path: ./train_lmdb, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("database folders or files, or patterns of them")]
    label_type: Annotated[int, Arg("how the label is stored", ge=0, le=4)] = 0
    num_labels: Annotated[int, Arg("number of labels, for types 1 and 3", ge=1)] = 1
    additional_inputs: Annotated[int, Arg("further tensors after the label", ge=0, le=64)] = 0
    bbox: Annotated[bool, Arg("the last tensor is a box")] = False
    image_available: Annotated[bool, Arg("the first tensor is an image")] = True
    encoded: Annotated[bool, Arg("images are encoded files; false: raw pixels, HWC")] = True

    def _schema(self) -> Tensors:
        return Tensors(self.label_type, self.num_labels, self.additional_inputs, self.bbox, self.image_available,
                       self.encoded)  # fmt: skip

    def check(self) -> None:
        super().check()
        check_path(self.path)
        if not self._schema().specs:
            raise SpecError("has no output: ask for an image, a label or further tensors")

    @property
    def num_outputs(self) -> int:
        return len(self._schema().specs)

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return self._schema().specs

    def open(self) -> _LmdbRecords:
        return _LmdbRecords(self.path, self._schema())


def check_path(path: str | tuple[str, ...]) -> None:
    """Check the reader's argument ``path``. Raises SpecError if it is empty."""
    if not one_or_more(path) or any(not p or "\0" in p for p in one_or_more(path)):
        raise SpecError("path names no file")
