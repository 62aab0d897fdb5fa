"""The interface of writers: a format's name, its options, and how whole batches of records become bytes of a shard.

    class TFRecord(Writer, name="tfrecord", suffix=".tfrecord"):
        '''TensorFlow's records.'''
        index: Annotated[bool, Arg("also write the .idx file that DALI's reader takes")] = True
        def open(self, files, fields) -> Shard: ...

`Output` calls a shard twice per batch: ``frame`` makes the bytes of the records and returns how many each adds,
``append`` writes the first n of them. In between, `Output` decides how many still belong to this shard. Neither takes
Python time per sample.
"""

from __future__ import annotations

import dataclasses
import filecmp
import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, dataclass_transform, get_args

import numpy as np

from ..ops.base import Arg, Parameter, Spec, coerce, nearest, parameters, type_name
from ..ops.batch import I64, Batch, Samples
from ..ops.errors import JobError, RejectCode, SpecError
from .bytes import files_io
from .bytes.background import WriterThreads
from .bytes.checksums import BLOCK, STEP, Checksums
from .bytes.files_io import Bytes, File
from .bytes.scatter_gather import IoVector
from .bytes.written import Problem, UnreadError, WrittenShard

Encode = Literal["auto", "raw", "npy", "keep", "text", "jpeg", "png", "webp", "avif", "flac", "wav"]
ENCODINGS: tuple[str, ...] = get_args(Encode)
CHECKSUMS = ("tree", "sha256")
"""Kinds of checksums that a job can ask for, in addition to CRC-32C; ``sha256`` includes the tree of checksums
(`bytes.checksums`)."""
ENCODED = ("keep", "text", "jpeg", "png", "webp", "avif", "flac", "wav")
"""Values of `encode` for fields whose samples are encoded already when they reach the writer: bytes, 1-D uint8."""


@dataclass(frozen=True, slots=True)
class FieldConfig:
    """How a writer stores one field of the samples."""

    encode: str = "auto"
    """One of `ENCODINGS`. ``auto`` stores numbers and lists of numbers as such, 1-D uint8 as bytes, everything else as
    ``raw``."""
    quality: int | None = None
    """Quality of jpeg, webp and avif, 1 to 100; None for the encoder's default."""
    extension: str = ""
    """File name extension in tar and file outputs, without the dot; empty: chosen by the encoding."""


@dataclass(frozen=True, slots=True)
class Records:
    """The samples of a batch that are to be written, with their fields; rejected samples are left out. All fields have
    the same length."""

    samples: Samples
    fields: Mapping[str, Batch]

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, where: Any) -> Records:
        """Return the records at ``where`` (indices, a mask, or a slice); the data is shared, not copied."""
        samples = self.samples.take(where)
        return Records(samples, {k: b.take(where, samples) for k, b in self.fields.items()})

    def sample_keys(self) -> list[str]:
        """Keys of the samples in their data set, one text per sample."""
        return [name.decode("utf-8", "surrogateescape") for name in self.samples.names()]


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that a format cannot store: its index ``at`` in the records, and the reason."""

    at: int
    """Index in the records that were to be written."""
    code: RejectCode
    """Reject code, as in rejects.jsonl."""
    message: str
    """Reason, for users."""


@dataclass(slots=True)
class Frames:
    """Records of a batch, converted ("framed") to the bytes that a format writes into a shard. Each format has a
    subclass with its own data."""

    sizes: I64
    """Number of bytes that each record adds to the shard."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Facts of a published file, as journal and manifest list them."""

    name: str
    """Path of the file below the output directory, with forward slashes."""
    bytes: int
    crc32c: str
    tree: str
    """Root of the tree of checksums of the content, see `bytes.checksums.Checksums`."""
    sha256: str = ""
    """SHA-256 of the file's content, if the job asks for it; otherwise empty."""

    def listed(self, version: int) -> dict[str, Any]:
        """Return the file's entry for a journal of format ``version``."""
        listed: dict[str, Any] = {"name": self.name, "bytes": self.bytes, "crc32c": self.crc32c}
        if version > 1:
            listed["tree"] = self.tree
        if self.sha256:
            listed["sha256"] = self.sha256
        return listed


LARGE = 1 << 20
"""Size in bytes from which a write is left to another thread."""


class ShardFile:
    """A file of a shard that is being written, under a temporary name, with its checksums. Created by `ShardFiles`; one
    thread at a time calls it.

    With ``workers``, a background thread does all large writes of the file: `write` returns before the bytes are in the
    file, and the bytes must not change until they are. The calling thread does small writes. Usually several threads
    then compute the checksums from the page cache, so that these need no memory; the disk starts to write once
    everything is in the file. But if a framing thread (which converts records to the format's bytes) calls `write`,
    that thread computes the checksums. ``deep``: also compute SHA-256, which occupies one thread all the time."""

    framed_in_background = False
    """Whether a framing thread (which converts records to the format's bytes) calls `write`. If not, the thread that
    delivers batches does."""

    def __init__(
        self,
        temporary: Path,
        final: str,
        workers: WriterThreads | None = None,
        patched: bool = False,
        deep: bool = False,
    ) -> None:
        self.final = final
        self.temporary = temporary
        self.closed = False
        self._file = File(temporary)
        self._workers = workers
        self._size = 0
        self._patched = patched
        self._thread: int | None = None
        """Number of the writing thread that does all work on this file; None until there is work for it."""
        self._last: Future[None] | None = None
        """Last task on this file in a thread's queue; None if there was none."""
        self._sums = Checksums()
        self._summing: list[Future[None]] = []
        self._summed = 0
        """Number of bytes, from the start of the file, whose checksums are computed or queued."""
        self._in_order = True
        """Whether all bytes were hashed in the order in which they were written."""
        self._rewritten: set[int] = set()
        """Numbers of the blocks (of `checksums.BLOCK` bytes) that were changed after they were hashed."""
        self._sha = hashlib.sha256() if deep else None
        self._hashed = 0
        self._hashing: Future[None] | None = None
        self._syncing: Future[None] | None = None
        self._sealed = False
        self._info: FileInfo | None = None

    @property
    def size(self) -> int:
        """Number of bytes written so far, including writes that wait in a thread's queue."""
        return self._size

    @property
    def pending(self) -> bool:
        """Whether any write of this file was put into a thread's queue, finished or not."""
        return self._last is not None

    def write(self, data: Bytes) -> None:
        """Write ``data`` at the end of the file."""
        self._size += len(data)
        if self._workers is None or (self._last is None and len(data) < LARGE):
            if isinstance(data, IoVector):
                data = data.packed()
            self._file.write(data)
            self._sums.extend(data)
            self._summed += len(data)
            if self._sha is not None and not self._patched:
                self._sha.update(data if isinstance(data, bytes) else data.data)
                self._hashed += len(data)
            return
        if self.framed_in_background and self._in_order:
            self._sums.extend(data)
            self._summed += len(data)
        else:
            self._in_order = False
        self._enqueue(lambda: self._write_behind(data), len(data))

    def _enqueue(self, work: Callable[[], object], weight: int = 1) -> None:
        assert self._workers is not None
        if self._thread is None:
            self._thread = self._workers.writes.least_busy()
        self._last = self._workers.writes.put(work, weight, self._thread, self)

    def _write_behind(self, data: Bytes) -> None:
        self._file.write(data)
        self._start_checksums()

    def _start_checksums(self, last: bool = False) -> None:
        """Let other threads compute the checksums of the bytes written so far. ``last``: no bytes follow, so the
        incomplete last block is included."""
        assert self._workers is not None
        follow = self._workers.following.submit
        if self._summed % BLOCK and self._summed < self._file.size:  # small writes came first
            self._rewritten.add(self._summed // BLOCK)
            self._sums.cut()
            self._summed = -(-self._summed // BLOCK) * BLOCK
        while (n := min(self._file.size - self._summed, STEP)) > 0 and (last or n == STEP):
            self._summing.append(follow(self._file.sum, self._sums, self._summed // BLOCK, n))
            self._summed += n
        if self._sha is not None and not self._patched and self._file.size - self._hashed >= (1 if last else STEP):
            before = self._hashing
            if last or before is None or before.done():
                self._hashing = follow(self._hash, before)
        if last:
            self._syncing = follow(self._file.sync)

    def _hash(self, before: Future[None] | None = None) -> None:
        """Wait for the earlier work ``before``. Then continue SHA-256 up to the end of the bytes written so far."""
        assert self._sha is not None
        if before is not None:
            before.result()
        buffer = np.empty(BLOCK, np.uint8)
        while (left := self._file.size - self._hashed) > 0:
            n = self._file.read_into(buffer[: min(left, BLOCK)], self._hashed)
            self._sha.update(buffer[:n].data)
            self._hashed += n

    def write_file(self, path: Path) -> None:
        """Append the content of the file ``path``, which a format's library made, then remove ``path``."""
        with open(path, "rb") as made:
            while block := made.read(8 * LARGE):
                self.write(block)
        files_io.remove(path)

    def rewrite(self, offset: int, data: bytes) -> None:
        """Replace bytes that were written before, such as a header that depends on later data. Their blocks are then
        read again for the checksums. For SHA-256 the whole file is read again, unless it was created as `patched`."""
        self._patched = True
        self._rewritten.update(range(offset // BLOCK, -(-(offset + len(data)) // BLOCK)))
        if self._last is None:
            self._file.write_at(offset, data)
        else:
            self._enqueue(lambda: self._file.write_at(offset, data))

    def seal(self) -> None:
        """Declare that no writes to the file follow, so that the remaining checksums are computed early."""
        if self._last is not None and not self._sealed:
            self._sealed = True
            self._enqueue(lambda: self._start_checksums(last=True))

    def finish(self) -> FileInfo:
        """Make the file's content durable and close it. Return name, size and checksums of the file; further calls only
        return these."""
        if self._info is not None:
            return self._info
        if self._last is not None:
            self.seal()
            self._last.result()
            for work in (*self._summing, self._hashing, self._syncing):
                if work is not None:
                    work.result()
        else:
            self._file.sync()
        self._sums.flush()
        for block in sorted(self._rewritten):
            self._file.sum(self._sums, block, min(BLOCK, self._file.size - block * BLOCK))
        if self._sha is not None and self._patched:
            self._sha, self._hashed = hashlib.sha256(), 0
            self._hash()
        self.close()
        crc, tree = self._sums.result()
        sha = "" if self._sha is None else self._sha.hexdigest()
        self._info = FileInfo(self.final, self._file.size, crc, tree, sha)
        return self._info

    def close(self) -> None:
        """Close the file without finishing it."""
        self.closed = True
        self._file.close()


class ShardFiles:
    """The files of one shard that is being written below ``root``. They have temporary names until `publish`. Created
    by `Output`."""

    def __init__(
        self, root: Path, stem: str, tag: str, expected: int = 0, state: Any = None, only_part: bool = True,
        workers: WriterThreads | None = None, deep: bool = False,
    ) -> None:  # fmt: skip
        self.root = root
        self.stem = stem
        """The shard's name without suffix, such as ``train-00000-of-00012``."""
        self.expected = expected
        """Number of samples that the shard will hold if none is rejected; 0 if unknown."""
        self.state = state
        """State that all shards of a run share, such as the file names in use, as `Writer.begin` returned it."""
        self.carry: dict[str, Any] = {}
        """State (JSON-able) that is kept from shard to shard and over restarts. `Writer.refuse` updates it; shards may
        add facts that are equal for all of them."""
        self._framed_in_background = False
        self._only_part = only_part
        self._tag = tag
        self._workers = workers
        self._deep = deep
        self._open: list[ShardFile] = []
        self._moves: list[tuple[Path, Path]] = []

    def create(self, suffix: str) -> ShardFile:
        """Create a file of the shard, to be published as ``<stem><suffix>``."""
        final = self.stem + suffix
        temporary = self._temporary(final)
        return self._add(ShardFile(temporary, final, self._workers, deep=self._deep), temporary, self.root / final)

    def create_in_directory(self, suffix: str, name: str, patched: bool = False) -> ShardFile:
        """Create a file ``name`` in a directory of its own, to be published as ``<stem><suffix>/<name>``. ``patched``:
        the beginning of the file is rewritten at the end, so SHA-256 starts only then."""
        final = self.stem + suffix
        directory = self._temporary(final)
        files_io.make_dirs(directory)
        file = ShardFile(directory / name, f"{final}/{name}", self._workers, patched, self._deep)
        return self._add(file, directory, self.root / final)

    def create_at(self, number: int, final: str) -> ShardFile:
        """Create file number ``number`` of the shard, to be published as ``final``. This is a path below the root that
        the caller has checked."""
        directory = self._temporary(self.stem)
        files_io.make_dirs(directory)
        temporary = directory / f"{number:08d}"
        return self._add(ShardFile(temporary, final, self._workers, deep=self._deep), temporary, self.root / final)

    def _temporary(self, final: str) -> Path:
        return self.root / f".{final}.tmp-{self._tag}"

    def frame_in_background(self) -> None:
        """Declare that from now on a framing thread writes to the files, instead of the thread that delivers batches. A
        framing thread converts records to the format's bytes."""
        self._framed_in_background = True
        for file in self._open:
            file.framed_in_background = True

    def _add(self, file: ShardFile, temporary: Path, final: Path) -> ShardFile:
        file.framed_in_background = self._framed_in_background
        self._open.append(file)
        self._moves.append((temporary, final))
        return file

    def seal(self) -> bool:
        """Declare that no writes to the shard's files follow. Return whether other threads still work on them."""
        for file in self._open:
            file.seal()
        return any(f.pending for f in self._open)

    def publish(self) -> list[FileInfo]:
        """Make all files of the shard durable, then give them their final names, in the order of their creation."""
        infos = [f.finish() for f in self._open]
        directories = {self.root}
        for temporary, final in self._moves:
            if temporary.is_dir():
                files_io.sync_dir(temporary)
            if final.parent not in directories:
                files_io.make_dirs(final.parent)
                directories.update(p for p in final.parents if p.is_relative_to(self.root))
            if self._only_part or temporary.parent == self.root:
                files_io.rename(temporary, final)
            else:
                self._publish_new(temporary, final)
        staging = self._temporary(self.stem)
        if staging.is_dir():
            files_io.remove(staging)
        for directory in sorted(directories):
            files_io.sync_dir(directory)
        return infos

    def _publish_new(self, temporary: Path, final: Path) -> None:
        """Publish a file under a name that another part of the job may also use. Raises JobError if the other part has
        written different content."""
        try:
            files_io.rename_new(temporary, final)
        except FileExistsError:
            if not filecmp.cmp(temporary, final, shallow=False):  # equal content: this shard's file, from a killed run
                raise JobError(
                    f"two parts of the job write {final}: samples of equal keys; use the writer's option key: position"
                ) from None
            files_io.remove(temporary)

    def discard(self) -> None:
        """Close all files of the shard, and remove those that are not published."""
        for file in self._open:
            file.close()
        for temporary, _ in self._moves:
            files_io.remove(temporary)
        files_io.remove(self._temporary(self.stem))


class Shard:
    """A shard of one format that is being written. `Writer.open` creates it; `Output` calls it, one thread at a
    time."""

    def frame(self, records: Records) -> Frames:
        """Convert ``records`` to the bytes that the shard will get ("frame" them). The shard itself does not change."""
        raise NotImplementedError

    def append(self, frames: Frames, n: int) -> None:
        """Write the first ``n`` records of ``frames`` into the shard."""
        raise NotImplementedError

    def close(self) -> None:
        """Write the end of the shard (trailers, indexes). Its files stay open for `ShardFiles.publish`."""


_WRITERS: dict[str, type[Writer]] = {}
"""Registry: all declared writers, by name. Class statements fill it, also those of plugins."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Writer:
    """Base of all formats of outputs. Its attributes are the options of the format, as the attributes of operators are
    their arguments."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    """File name suffix of a shard's main file."""
    default_samples: ClassVar[int | None] = None
    """Default number of samples per shard, if the spec does not say; None for one shard with all samples."""
    copies: ClassVar[int] = 0
    """Number of copies of a record of `LARGE` bytes or more that are in memory while the record is written."""
    independent: ClassVar[bool] = False
    """Whether the bytes of a shard depend only on its records, not on `ShardFiles.carry` or its ``state``. Then other
    threads convert large records to the format's bytes, for several shards at the same time."""
    folders: ClassVar[tuple[str, ...]] = ()
    """Names of folders in an output that the format's library fills, with other bytes on every run; no checksum covers
    them."""
    local_only: ClassVar[bool] = False
    """Whether outputs of the format can be written to folders only, not to URLs."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Python packages that produce the bytes of the format's files. A job that was started with one version of them
    does not resume with another."""

    def __init_subclass__(cls, name: str = "", suffix: str = "", abstract: bool = False) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        if abstract:
            return
        if not name:
            raise TypeError(f"{cls.__name__} needs a name: class {cls.__name__}(Writer, name=..., suffix=...)")
        cls.name, cls.suffix = name, suffix
        _WRITERS[name] = cls

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        """Check that the format can store these fields. Called once, before any data is read. Raises SpecError."""

    def schema(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> dict[str, Any] | None:
        """Return facts (JSON-able) that hold for all shards of a job whose fields have these ``specs``, such as dtype
        and shape of each field. They are the initial content of ``carry``. None if the specs leave one of these facts
        open; the job then calls again with the specs of the data set's first sample."""
        return {}

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        """Start a shard in ``files``, with these ``fields``."""
        raise NotImplementedError

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        """Return the records that the format cannot store. ``carry`` (JSON-able) is state that is kept from shard to
        shard, and over restarts; the function may change it."""
        return ()

    def begin(self, root: Path, finished: Sequence[Mapping[str, Any]]) -> Any:
        """Create the state that all shards of a run share (`ShardFiles.state`) and that is too large for ``carry``.
        ``finished`` are the journal's entries of earlier runs."""
        return None

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:  # noqa: ARG003 (formats use it)
        """Read every record of a published shard, and yield the problems. `verify` calls this after it has compared the
        checksums of all files. Raises UnreadError if the records cannot be read on this machine, and for formats that
        do not define this function; any other exception counts as damage."""
        raise UnreadError(f"the writer {cls.name} does not read what it wrote")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Create the writer from the ``options`` that a manifest lists."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return cls(**values)

    @property
    def collection(self) -> tuple[str, ...]:
        """Names of the files that describe all shards together, in addition to the manifest, such as index.json."""
        return ()

    @classmethod
    def collect(cls, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> dict[str, bytes]:  # noqa: ARG003
        """Return the content of the files that `collection` names, for a finished output. It is made from the manifest
        and the writer's schema (or, without a schema, its last ``carry``)."""
        return {}

    @classmethod
    def complete(cls, root: Path, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> None:
        """Let the format's library fill the `folders` of a finished output, before the manifest is published."""

    @classmethod
    def check_complete(cls, root: Path, manifest: Mapping[str, Any]) -> Iterator[Problem]:  # noqa: ARG003
        """Yield the problems in the content of the `folders` that the format's library filled."""
        yield from ()

    def check_root(self, root: Path, others: Sequence[str]) -> None:
        """Check that a new job may write into the directory ``root``, which already holds the files ``others``. Raises
        JobError."""


def writers() -> dict[str, type[Writer]]:
    """Return the classes of all formats by name, sorted."""
    package = importlib.import_module(".formats", __package__)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("_cpu"):
            importlib.import_module(module.name)
    return dict(sorted(_WRITERS.items()))


def find_writer(name: str) -> type[Writer]:
    """Return the class of the format ``name``. Raises SpecError with similar names if there is none."""
    known = writers()
    if name in known:
        return known[name]
    raise SpecError(f"there is no writer {name!r}{nearest(name, known)} (known: {', '.join(known)})")


def options_of(writer: type[Writer]) -> dict[str, Parameter]:
    """Return the options of a format, by name."""
    return parameters(writer)


def make_writer(name: str, options: Mapping[str, Any]) -> Writer:
    """Create a writer of the format ``name`` with these ``options``. Raises SpecError that lists everything wrong with
    them."""
    cls = find_writer(name)
    known = options_of(cls)
    values: dict[str, Any] = {}
    problems = []
    for key, value in options.items():
        if key not in known:
            problems.append(f"writer {name} has no option {key!r}{nearest(key, known)}")
            continue
        try:
            values[key] = coerce(known[key], value)
        except ValueError as e:
            problems.append(f"option {key!r}: {e}")
    problems += [
        f"needs option {p.name!r} ({type_name(p.type)}: {p.arg.help})"
        for p in known.values()
        if p.required and p.name not in options
    ]
    if problems:
        raise SpecError("; ".join(problems))
    return cls(**values)


KeyBy = Annotated[Literal["sample", "position"], Arg("name records by the sample's own key, or by its position")]
