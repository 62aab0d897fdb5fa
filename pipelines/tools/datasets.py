"""Inspection of data: the records of a shard or data set, the contents of their fields, and whether their images
decode. Used by `inspect`, `stats` and `init`.

Records are read through the readers that know the container, so that a job reads the same.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...ops.base import coerce, find, parameters
from ...ops.batch import Samples
from ...ops.codecs.formats import recognise
from ...ops.context import Context
from ...ops.errors import JobError, SampleError, SpecError
from ...ops.storage.urls import is_url, plain_path
from ...ops.video.glimpse import glimpse, is_video
from ...readers.base import Reader
from ...readers.file import MEDIA_FILTERS, VIDEO_FILTERS
from ...readers.parquet.columns import ReadableColumn
from ...readers.parquet.lance import columns_of as lance_columns
from ...readers.parquet.reader import columns_of
from ...readers.records.message import message_fields
from ...readers.records.varint import varint
from ...readers.streaming.kinds import index_at
from ...writers.bytes import sidecar
from ..plugins import load_operators
from ..show.pictures import FRAME_SIDE, FRAMES, as_picture, contact_sheet
from ..wording import printable
from .intermediates import save_pictures
from .remote_sample import skeleton

_MOST_SHOWN = 60
"""Largest number of characters to display of a text or bytes value."""


@dataclass(slots=True)
class Record:
    """One record of a data set with its fields, for display."""

    key: str
    source: str
    number: int
    fields: dict[str, Any] = field(default_factory=dict)
    """Values of the record's fields by name: bytes, numbers, texts or arrays."""
    problem: str = ""


@dataclass(slots=True)
class DataSet:
    """The records that were found at a path, their number, and the kind of the data set."""

    kind: str
    count: int | None
    """Number of records; None if counting them requires reading the whole data set."""
    records: Iterator[Record]


def inspect_data(
    target: Path | str, n: int, out: Path | None = None, follow_links: bool = False,
    saved_images: list[tuple[int, str, Image.Image]] | None = None, in_part: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the first ``n`` records at ``target`` as data for JSON. Images in them are saved in the folder ``out``,
    with a contact sheet, and appended to ``saved_images`` as (index of the record, field name, image). For a URL, the
    first container or the first files are downloaded and inspected.

    ``in_part``: shards of an output may be missing. Raises SpecError if there is no data set, and for links that point
    out of it, unless ``follow_links``.
    """
    if is_url(target):
        with skeleton(str(target), n) as copy:
            report = inspect_data(copy.place, n, out, saved_images=saved_images, in_part=True)
            for sample in report["samples"]:
                sample["source"] = sample["source"].replace(str(copy.place), str(target).rstrip("/"))
            return {
                **report,
                "target": str(target),
                "records": report["records"] if len(copy.containers) == 1 else None,
            }
    target = Path(plain_path(str(target)))
    if not follow_links:
        check_links(target)
    data_set = open_data(target, in_part=in_part)
    rows: list[dict[str, Any]] = []
    pictures: dict[str, list[Image.Image]] = {}
    for record in itertools.islice(data_set.records, n):
        for name, picture in _pictures(record) if out is not None or saved_images is not None else ():
            pictures.setdefault(name, []).append(picture)
            if saved_images is not None:
                saved_images.append((len(rows), name, picture))
        fields = {name: describe(value) for name, value in record.fields.items()}
        rows.append({"key": record.key, "source": record.source, "record": record.number, "fields": fields,
                     "problem": record.problem})  # fmt: skip
    if out is not None and pictures:
        save_pictures(list(pictures.items()), out)
    return {"target": str(target), "kind": data_set.kind, "records": data_set.count, "samples": rows}


def _pictures(record: Record) -> Iterator[tuple[str, Image.Image]]:
    """Yield (name, image) for each field of a record that can be displayed: encoded images and videos, and arrays that
    look like images or sequences of frames."""
    for name, value in record.fields.items():
        if isinstance(value, bytes) and is_video(value):
            with suppress(SampleError):
                yield name, contact_sheet(glimpse(value, FRAMES, FRAME_SIDE)[1])
        elif isinstance(value, bytes) and "width" in (facts := describe(value)) and "problem" not in facts:
            with Image.open(io.BytesIO(value)) as image:
                yield name, image.convert("RGB")
        elif isinstance(value, np.ndarray) and value.ndim == 4 and value.dtype == np.uint8 and value.shape[3] == 3:
            picture = as_picture(value, "FHWC")
            if picture is not None:
                yield name, picture
        elif isinstance(value, np.ndarray) and value.ndim == 3:
            picture = as_picture(value, "HWC" if value.shape[2] in (1, 3) else "CHW")
            if picture is not None:
                yield name, picture


def describe(value: Any) -> dict[str, Any]:
    """Describe the value of a field as data for JSON: ``{"what", ...}`` and, for images, ``{"format", "width",
    "height", "mode", "problem"}``, for videos ``{"codec", "width", "height", "frames", "seconds"}``."""
    if isinstance(value, bytes):
        try:
            return {"bytes": len(value), **_image(value)}
        except SampleError:
            pass
        if is_video(value):
            with suppress(SampleError):
                return {"what": "video", "bytes": len(value), **glimpse(value)[0]}
        if value[:6] == b"\x93NUMPY":
            try:
                return describe(np.load(io.BytesIO(value), allow_pickle=False))
            except (ValueError, EOFError) as e:
                return {"what": "npy", "bytes": len(value), "problem": f"cannot be read safely: {e}"}
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return {"what": "bytes", "bytes": len(value)}
        return {"what": "text", "bytes": len(value), "value": _short(text)}
    if isinstance(value, np.ndarray):
        facts: dict[str, Any] = {"what": "array", "dtype": str(value.dtype), "shape": list(value.shape)}
        if value.size and value.dtype.kind in "biuf":
            facts |= {"min": value.min().item(), "max": value.max().item(), "mean": float(value.mean(dtype=np.float64))}
        return facts
    return {"what": type(value).__name__, "value": _short(str(value))}


def _image(data: bytes) -> dict[str, Any]:
    """Decode an image as a check, and return facts about it, such as format and size. Raises SampleError for data that
    is not an image."""
    kind = recognise(memoryview(data))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as image:
                facts = {"what": kind, "width": image.width, "height": image.height, "mode": image.mode}
                image.load()
                return facts
    except Exception as e:  # Pillow raises nine exception types for damaged files
        return {"what": kind, "problem": f"does not decode: {' '.join(str(e).split())}"}


def _short(text: str) -> str:
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 4] + " ..."


# -- finding out what it is -------------------------------------------------------------------------------------------


def open_data(target: Path, *, in_part: bool = False) -> DataSet:
    """Return the records at ``target``: a shard, a folder of files, an LMDB, or an output of dali-run. With
    ``in_part``, shards of the output may be missing. Raises SpecError."""
    load_operators()
    if not target.exists():
        raise SpecError(f"{target}: there is no such file or folder")
    if not os.access(target, os.R_OK | (os.X_OK if target.is_dir() else 0)):
        raise JobError(f"{target} cannot be read: {os.strerror(errno.EACCES)}")
    if (target / "data.mdb").is_file() or target.suffix == ".mdb":
        return _lmdb([target])
    if (target / "manifest.json").is_file():
        return _output(target, in_part)
    if target.is_dir():
        return _folder(target)
    return _shards([target])


def check_links(target: Path) -> None:
    """Raise SpecError if the folder ``target`` contains, at any depth, a symbolic link to a file outside of it. A data
    set from an untrusted source could otherwise expose private files."""
    root = os.path.realpath(target)
    folders = [root] if os.path.isdir(root) else []
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    leads = os.path.realpath(entry.path)
                    if leads != root and not leads.startswith(root + os.sep):
                        raise SpecError(
                            f"{entry.path} is a link to {leads}, outside of {target}; to read it anyway, "
                            "use --follow-links"
                        )
                elif folder == root and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def written_files(output: Path) -> list[tuple[str, int, list[str]]]:
    """Return (name, number of samples, files) of each shard in an output of dali-run, from its manifest. Raises
    SpecError if the manifest is invalid, JobError if it names files outside of the folder."""
    path = output / "manifest.json"
    try:
        shards = sidecar.read_json(path)["shards"]
        written = [(str(s["shard"]), int(s["samples"]), [f["name"] for f in s["files"]]) for s in shards]
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise SpecError(f"{path}: is not a manifest of dali-run ({e})") from None
    for _, _, names in written:
        for name in names:
            sidecar.inside(output, name)
    return written


def _output(target: Path, in_part: bool) -> DataSet:
    """Return the records in the output of a dali-run job; with ``in_part``, shards may be missing."""
    shards = written_files(target)
    names = [name for _, _, files in shards for name in files]
    count = sum(samples for _, samples, _ in shards)
    paths = [target / n for n in names if not n.endswith((".idx", ".jsonl"))]
    paths = [p for p in paths if p.exists()] if in_part else paths
    databases = [p.parent for p in paths if p.name == "data.mdb"]
    data_set = _lmdb(databases) if databases else _streaming(target) or _shards(paths)
    return DataSet(f"{data_set.kind}, written by dali-run", count, data_set.records)


def _folder(target: Path) -> DataSet:
    """Return the records of a folder, without a system call per file: it may hold a million files."""
    if (streaming := _streaming(target)) is not None:
        return streaming
    with os.scandir(target) as entries:
        inside = sorted((e for e in entries if e.name[0] != "."), key=lambda e: e.name)
    for kind in _CONTAINERS:
        if paths := [target / e.name for e in inside if kind.fullmatch(e.name)]:
            return _shards(paths)
    folders = [target / e.name for e in inside if e.is_dir()]
    databases = [p for p in folders if (p / "data.mdb").is_file()]
    if databases and databases == folders:
        return _lmdb(databases)
    if folders:
        filters = [*MEDIA_FILTERS, *VIDEO_FILTERS]
        arguments = {"file_root": str(target), "file_filters": filters}
        return read_through("folders of files", "readers.file", arguments, _file_fields)
    return _files([e.name for e in inside if e.is_file()], target)


def _streaming(folder: Path) -> DataSet | None:
    """Return the records of a Lance, MDS or litData data set; None for any other folder."""
    if (folder / "_versions").is_dir():
        return _table("Lance", "readers.lance", [folder], *lance_columns(str(folder)))
    entry = index_at(str(folder)) if (folder / "index.json").is_file() else None
    if entry is None:
        return None
    reader, index = entry
    fields = [f for f in index.fields if f.name != "key"] or list(index.fields)
    names = [f.name for f in fields]
    key = "key" if len(names) < len(index.fields) else None

    def taken_apart(outputs: list[Any]) -> dict[str, Any]:
        return {f.name: v.tobytes() if f.kind == "bytes" else v.item() if f.kind == "number" else v
                for f, v in zip(fields, outputs, strict=True)}  # fmt: skip

    kind = "MDS" if reader == "readers.mds" else "litData"
    return read_through(kind, reader, {"path": str(folder), "columns": names, "key": key}, taken_apart)


def _shards(paths: list[Path]) -> DataSet:
    if not paths:
        raise SpecError("there are no shards and no files")
    for kind, read_container in _CONTAINERS.items():
        if kind.fullmatch(paths[0].name):
            return read_container(paths)
    return _files([os.path.relpath(p, paths[0].parent) for p in paths], paths[0].parent)


def _files(names: list[str], root: Path) -> DataSet:
    if not names:
        raise SpecError(f"{root}: the folder is empty")
    return read_through("files", "readers.file", {"files": names, "file_root": str(root.absolute())}, _value_only)


def _lmdb(paths: list[Path]) -> DataSet:
    return read_through("LMDB", "readers.lmdb", {"path": [str(p) for p in paths]}, _value_fields)


def _array_record(paths: list[Path]) -> DataSet:
    return read_through("ArrayRecord", "readers.array_record", {"path": [str(p) for p in paths]}, _value_fields)


def _tfrecord(paths: list[Path]) -> DataSet:
    return read_through("TFRecord", "readers.tfrecord", {"path": [str(p) for p in paths]}, _value_fields)


def _tar(paths: list[Path]) -> DataSet:
    return DataSet("tar (webdataset)", None, tar_records(paths))


def _recordio(paths: list[Path]) -> DataSet:
    return read_through("RecordIO", "readers.mxnet", {"path": [str(p) for p in paths]}, _labelled)


def _parquet(paths: list[Path]) -> DataSet:
    return _table("Parquet", "readers.parquet", paths, *columns_of(str(paths[0])))


def _table(kind: str, reader: str, paths: list[Path], columns: list[ReadableColumn], refused: list[str]) -> DataSet:
    """Return the records of Parquet or similar tables. For a column that cannot be read, each record contains the
    reason instead of a value."""
    key = next((c.name for c in columns if c.name == "key" and c.kind == "text" and len(columns) > 1), None)
    names = [c.name for c in columns if c.name != key]
    if not names:
        raise SpecError(f"{paths[0]}: {'; '.join(refused) or 'has no columns'}")
    kinds = {c.name: c.kind for c in columns}

    def fields(outputs: list[Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in zip(names, outputs, strict=True):
            if kinds[name] in ("bytes", "text"):
                values[name] = value.tobytes()
            else:
                values[name] = value if kinds[name] == "list" or len(value) != 1 else value[0].item()
        return with_arrays({**values, **{f"(column {k})": why for k, why in enumerate(refused)}})

    arguments = {"path": [str(p) for p in paths], "columns": names, "key": key, "nulls": "empty"}
    return read_through(kind, reader, arguments, fields)


# -- records through the readers --------------------------------------------------------------------------------------


def read_through(
    kind: str, name: str, arguments: dict[str, Any], take_apart: Any, spread: int | None = None
) -> DataSet:
    """Return the data set that the reader operator ``name`` opens with ``arguments``. ``take_apart``: function that
    turns the reader's outputs into the fields of a record. ``spread``: number of records to read, evenly distributed
    over the data set; None reads all."""
    op_class = find(name)
    assert issubclass(op_class, Reader)
    known = parameters(op_class)
    values: dict[str, Any] = {k: coerce(known[k], v) for k, v in arguments.items()}
    reader = op_class(**values)
    reader.check()
    source = reader.open()
    n = len(source)
    indices = range(n) if spread is None or n <= spread else [k * n // spread for k in range(spread)]
    return DataSet(kind, n, _through(reader, source, indices, take_apart))


def _through(reader: Reader, source: Any, indices: Iterable[int], take_apart: Any) -> Iterator[Record]:
    """Yield the records with these ``indices``, as a reader reads them. If a record cannot be read, its field
    ``problem`` is the reason."""
    for i in indices:
        at = np.array([i], np.int64)
        samples = Samples(np.zeros(1, np.int32), at, np.zeros(1, np.int64), at, source)
        ctx = Context(op=reader, stage="cpu", samples=samples, source=source)
        origin = samples.origin(0)
        record = Record(origin.key, origin.source, origin.record)
        outputs = source.fetch(ctx)
        if ctx.rejects:
            record.problem = f"{ctx.rejects[0].code}: {ctx.rejects[0].message}"
        else:
            record.fields = take_apart([np.asarray(b.sample(0)) for b in outputs])
        yield record
    source.close()


def _file_fields(outputs: list[Any]) -> dict[str, Any]:
    return {"data": outputs[0].tobytes(), "label": int(outputs[1].reshape(-1)[0])}


def _labelled(outputs: list[Any]) -> dict[str, Any]:
    labels = outputs[1]
    return {"data": outputs[0].tobytes(), "label": labels[0].item() if len(labels) == 1 else labels}


def _value_only(outputs: list[Any]) -> dict[str, Any]:
    return {"data": outputs[0].tobytes()}


def _value_fields(outputs: list[Any]) -> dict[str, Any]:
    """Return the fields of one stored value of a TFRecord file or LMDB: a tf.train.Example, a Caffe Datum, an image, or
    other bytes."""
    data: bytes = outputs[0].tobytes()
    try:
        recognise(memoryview(data))
    except SampleError:
        return with_arrays(example_fields(data)) or datum_fields(data) or {"value": data}
    return {"value": data}


def with_arrays(fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with raw tensors as arrays. The tfrecord and lmdb writers store a tensor ``x`` as the three
    fields ``x``, ``x/shape`` and ``x/dtype``."""
    joined = dict(fields)
    for name, data in fields.items():
        shape, dtype = fields.get(f"{name}/shape"), fields.get(f"{name}/dtype")
        if isinstance(data, bytes) and isinstance(dtype, bytes) and shape is not None:
            try:
                joined[name] = np.frombuffer(data, np.dtype(dtype.decode())).reshape(np.atleast_1d(shape))
            except (ValueError, TypeError):
                continue
            del joined[f"{name}/shape"], joined[f"{name}/dtype"]
    return joined


# -- messages ---------------------------------------------------------------------------------------------------------


def example_fields(data: bytes) -> dict[str, Any]:
    """Return the features of a tf.train.Example; empty if ``data`` is not one."""
    try:
        # views, so that a large value is copied once instead of at every level
        parts = [v for n, v in message_fields(memoryview(data)) if n == 1 and isinstance(v, memoryview)]
        features = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        fields = {}
        for number, entry in message_fields(features):
            feature = dict(message_fields(entry))
            if number != 1 or not {1, 2} >= set(feature):
                return {}
            fields[bytes(feature[1]).decode()] = _feature(feature.get(2, memoryview(b"")))
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}
    return fields


def _feature(data: memoryview) -> Any:
    """Return the value of a tf.train.Feature: one value as a scalar, several as an array or a list. Raises
    ValueError."""
    for kind, values in message_fields(data):
        items = [v for n, v in message_fields(values) if n == 1]
        if kind == 1:
            return bytes(items[0]) if len(items) == 1 else [len(i) for i in items]
        if kind == 2:
            floats = np.frombuffer(b"".join(items), "<f4")
            return float(floats[0]) if len(floats) == 1 else floats
        if kind == 3:
            numbers: list[int] = []
            for item in items:
                numbers += [item] if isinstance(item, int) else _varints(item)
            signed = [v - (1 << 64) if v >> 63 else v for v in numbers]
            return signed[0] if len(signed) == 1 else np.array(signed, np.int64)
    return np.zeros(0, np.int64)


def _varints(data: bytes | memoryview) -> list[int]:
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at)
        values.append(value)
    return values


_DATUM = {1: "channels", 2: "height", 3: "width", 4: "data", 5: "label", 6: "float_data", 7: "encoded"}


def datum_fields(data: bytes) -> dict[str, Any]:
    """Return the fields of a Caffe Datum; empty if ``data`` is not one."""
    try:
        fields = {_DATUM[n]: v for n, v in message_fields(data)}
    except (ValueError, KeyError):
        return {}
    return fields if isinstance(fields.get("data"), bytes) or "float_data" in fields else {}


# -- tar and npy ------------------------------------------------------------------------------------------------------


def tar_records(paths: list[Path]) -> Iterator[Record]:
    """Yield the samples of tar archives. As in webdataset, members of a sample have equal paths up to the first dot of
    the file name."""
    for path in paths:
        record: Record | None = None
        number = 0
        try:
            with tarfile.open(path, "r|*") as tar:
                for member in tar:
                    if not member.isfile():
                        continue
                    folder, _, name = member.name.rpartition("/")
                    stem, _, extension = name.partition(".")
                    key = f"{folder}/{stem}" if folder else stem
                    if record is not None and record.key != key:
                        yield record
                        number += 1
                        record = None
                    record = record or Record(key, str(path), number)
                    opened = tar.extractfile(member)
                    record.fields[extension] = opened.read() if opened else b""
        except (tarfile.TarError, EOFError, OSError, ValueError) as e:
            record = record or Record("", str(path), number)
            record.problem = f"corrupt_record: {e}"
        if record is not None:
            yield record


def _npy(paths: list[Path]) -> DataSet:
    """Return the records of the numpy writer's shards (``<shard>.<field>.npy``, samples along the first axis), or of
    one array."""
    shards: dict[str, dict[str, Path]] = {}
    for path in paths:
        shard, _, name = path.stem.rpartition(".")
        shards.setdefault(shard, {})[name] = path

    def records() -> Iterator[Record]:
        for fields in shards.values():
            arrays = {name: _load(path) for name, path in fields.items()}
            for i in range(max(len(np.atleast_1d(a)) for a in arrays.values())):
                source = str(next(iter(fields.values())))
                values = {k: np.atleast_1d(a)[i] for k, a in arrays.items() if i < len(np.atleast_1d(a))}
                yield Record(f"{i:08d}", source, i, {k: np.asarray(v) for k, v in values.items()})

    count = sum(len(np.atleast_1d(_load(next(iter(fields.values()))))) for fields in shards.values())
    return DataSet("NumPy arrays", count, records())


def _load(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as e:
        raise JobError(f"{path}: cannot be read safely as an array: {e}") from None


# -- containers by name -----------------------------------------------------------------------------------------------


def _named(suffixes: str) -> re.Pattern[str]:
    """Return a pattern for file names with one of ``suffixes``, also if compressed or numbered, such as
    ``x.tfrecord-00000-of-00010``."""
    return re.compile(rf".*\.({suffixes})(\.(gz|bz2|xz)|-\d+-of-\d+)?")


_CONTAINERS: dict[re.Pattern[str], Callable[[list[Path]], DataSet]] = {
    _named("tfrecords?"): _tfrecord,
    _named("array_?record"): _array_record,
    _named("tar|tgz"): _tar,
    _named("rec"): _recordio,
    _named("parquet"): _parquet,
    _named("npy"): _npy,
}
"""For each container format, the pattern of its file names and the function that opens such files. A folder is searched
for the formats in this order."""
