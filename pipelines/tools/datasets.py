"""Inspect data: which records a shard or a data set holds, what is in their fields, and do the pictures decode.

Records come from the readers where those know the container, so that what is shown is what a job would read.
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
from ...readers.parquet.reader import columns_of
from ...readers.records.message import message_fields
from ...readers.records.varint import varint
from ...writers.bytes import sidecar
from ..plugins import load_operators
from ..show.pictures import FRAME_SIDE, FRAMES, as_picture, contact_sheet
from ..wording import printable
from .intermediates import save_pictures
from .remote_sample import skeleton

_MOST_SHOWN = 60
"""Characters of a value."""


@dataclass(slots=True)
class Record:
    """One record, taken apart."""

    key: str
    source: str
    number: int
    fields: dict[str, Any] = field(default_factory=dict)
    """Bytes, numbers, texts or arrays."""
    problem: str = ""


@dataclass(slots=True)
class DataSet:
    """The findings at a path."""

    kind: str
    count: int | None
    """None where only a full read would tell."""
    records: Iterator[Record]


def inspect_data(
    target: Path | str, n: int, out: Path | None = None, follow_links: bool = False,
    seen: list[tuple[int, str, Image.Image]] | None = None, in_part: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The first ``n`` records at ``target`` as plain data. Their pictures go to the folder ``out``, with a contact
    sheet, and to ``seen``: the record's number in what is returned, the field, the picture. Of a URL, the first
    container or the first files are copied here, and looked at (``in_part``: this was done).

    Raises SpecError for what is no data set, and for links that lead out of it unless they are to be followed.
    """
    if is_url(target):
        with skeleton(str(target), n) as copy:
            told = inspect_data(copy.place, n, out, seen=seen, in_part=True)
            for sample in told["samples"]:
                sample["source"] = sample["source"].replace(str(copy.place), str(target).rstrip("/"))
            return {**told, "target": str(target), "records": told["records"] if len(copy.containers) == 1 else None}
    target = Path(plain_path(str(target)))
    if not follow_links:
        check_links(target)
    found = open_data(target, in_part=in_part)
    rows: list[dict[str, Any]] = []
    pictures: dict[str, list[Image.Image]] = {}
    for record in itertools.islice(found.records, n):
        for name, picture in _pictures(record) if out is not None or seen is not None else ():
            pictures.setdefault(name, []).append(picture)
            if seen is not None:
                seen.append((len(rows), name, picture))
        fields = {name: describe(value) for name, value in record.fields.items()}
        rows.append({"key": record.key, "source": record.source, "record": record.number, "fields": fields,
                     "problem": record.problem})  # fmt: skip
    if out is not None and pictures:
        save_pictures(list(pictures.items()), out)
    return {"target": str(target), "kind": found.kind, "records": found.count, "samples": rows}


def _pictures(record: Record) -> Iterator[tuple[str, Image.Image]]:
    """The fields of a record that can be seen: encoded images and videos that decode, arrays that look like images or
    sequences of frames."""
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
    """A field described: ``{"what", ...}`` and, for images, ``{"format", "width", "height", "mode", "problem"}``,
    for videos ``{"codec", "width", "height", "frames", "seconds"}``."""
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
    """Facts of an encoded image, decoded to see whether it can be. Raises SampleError for anything else."""
    kind = recognise(memoryview(data))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as image:
                facts = {"what": kind, "width": image.width, "height": image.height, "mode": image.mode}
                image.load()
                return facts
    except Exception as e:  # Pillow raises nine kinds for damaged files
        return {"what": kind, "problem": f"does not decode: {' '.join(str(e).split())}"}


def _short(text: str) -> str:
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 4] + " ..."


# -- finding out what it is -------------------------------------------------------------------------------------------


def open_data(target: Path, *, in_part: bool = False) -> DataSet:
    """The records at ``target``: a shard, a folder of files, an LMDB, an output of ours, of which only some shards are
    there if ``in_part``. Raises SpecError."""
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
    """Raises SpecError where a folder, or a folder in it, holds a symbolic link that leads out of it: a data set may
    come from anybody, and what is read of it ends up in pictures and in outputs."""
    root = os.path.realpath(target)
    folders = [root] if os.path.isdir(root) else []
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    leads = os.path.realpath(entry.path)
                    if leads != root and not leads.startswith(root + os.sep):
                        raise SpecError(
                            f"{entry.path} is a link to {leads}, outside of {target}; if that is as it should be, "
                            "--follow-links reads it"
                        )
                elif folder == root and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def written_files(output: Path) -> list[tuple[str, int, list[str]]]:
    """Name, number of samples and files of the shards of an output of ours, by its manifest, which is data: SpecError
    where it is not one, JobError where it names files outside of the folder."""
    path = output / "manifest.json"
    try:
        shards = sidecar.read_json(path)["shards"]
        found = [(str(s["shard"]), int(s["samples"]), [f["name"] for f in s["files"]]) for s in shards]
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise SpecError(f"{path}: is no manifest of dali-run ({e})") from None
    for _, _, names in found:
        for name in names:
            sidecar.inside(output, name)
    return found


def _output(target: Path, in_part: bool) -> DataSet:
    """The output of one of our jobs."""
    shards = written_files(target)
    names = [name for _, _, files in shards for name in files]
    count = sum(samples for _, samples, _ in shards)
    paths = [target / n for n in names if not n.endswith((".idx", ".jsonl"))]
    paths = [p for p in paths if p.exists()] if in_part else paths
    databases = [p.parent for p in paths if p.name == "data.mdb"]
    found = _lmdb(databases) if databases else _shards(paths)
    return DataSet(f"{found.kind}, written by dali-run", count, found.records)


def _folder(target: Path) -> DataSet:
    """A folder may hold a million files: nothing here takes a system call or an object for each."""
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
        told = {"file_root": str(target), "file_filters": filters}
        return read_through("folders of files", "readers.file", told, _file_fields)
    return _files([e.name for e in inside if e.is_file()], target)


def _shards(paths: list[Path]) -> DataSet:
    if not paths:
        raise SpecError("there are no shards and no files")
    for kind, read in _CONTAINERS.items():
        if kind.fullmatch(paths[0].name):
            return read(paths)
    return _files([os.path.relpath(p, paths[0].parent) for p in paths], paths[0].parent)


def _files(names: list[str], root: Path) -> DataSet:
    if not names:
        raise SpecError(f"{root}: the folder is empty")
    return read_through("files", "readers.file", {"files": names, "file_root": str(root.absolute())}, _value_only)


def _lmdb(paths: list[Path]) -> DataSet:
    return read_through("LMDB", "readers.lmdb", {"path": [str(p) for p in paths]}, _value_fields)


def _tfrecord(paths: list[Path]) -> DataSet:
    return read_through("TFRecord", "readers.tfrecord", {"path": [str(p) for p in paths]}, _value_fields)


def _tar(paths: list[Path]) -> DataSet:
    return DataSet("tar (webdataset)", None, tar_records(paths))


def _recordio(paths: list[Path]) -> DataSet:
    return read_through("RecordIO", "readers.mxnet", {"path": [str(p) for p in paths]}, _labelled)


def _parquet(paths: list[Path]) -> DataSet:
    """All columns that can be read; of the others what stands in their place is why not."""
    columns, refused = columns_of(str(paths[0]))
    key = next((c.name for c in columns if c.name == "key" and c.kind == "text" and len(columns) > 1), None)
    names = [c.name for c in columns if c.name != key]
    if not names:
        raise SpecError(f"{paths[0]}: {'; '.join(refused) or 'has no columns'}")
    kinds = {c.name: c.kind for c in columns}

    def fields(outputs: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in zip(names, outputs, strict=True):
            if kinds[name] in ("bytes", "text"):
                found[name] = value.tobytes()
            else:
                found[name] = value if kinds[name] == "list" or len(value) != 1 else value[0].item()
        return with_arrays({**found, **{f"(column {k})": why for k, why in enumerate(refused)}})

    arguments = {"path": [str(p) for p in paths], "columns": names, "key": key, "nulls": "empty"}
    return read_through("Parquet", "readers.parquet", arguments, fields)


# -- records through the readers --------------------------------------------------------------------------------------


def read_through(
    kind: str, name: str, arguments: dict[str, Any], take_apart: Any, spread: int | None = None
) -> DataSet:
    """The data set that reader ``name`` opens; ``take_apart`` makes a record's fields of its outputs. ``spread``: only
    so many of its records, evenly from all of it."""
    op_class = find(name)
    assert issubclass(op_class, Reader)
    known = parameters(op_class)
    values: dict[str, Any] = {k: coerce(known[k], v) for k, v in arguments.items()}
    reader = op_class(**values)
    reader.check()
    source = reader.open()
    n = len(source)
    which = range(n) if spread is None or n <= spread else [k * n // spread for k in range(spread)]
    return DataSet(kind, n, _through(reader, source, which, take_apart))


def _through(reader: Reader, source: Any, which: Iterable[int], take_apart: Any) -> Iterator[Record]:
    """One record after the other: a bad one is shown with its reason."""
    for i in which:
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
    """A value of TFRecord or LMDB: an Example, a Datum, an image, or bytes."""
    data: bytes = outputs[0].tobytes()
    try:
        recognise(memoryview(data))
    except SampleError:
        return with_arrays(example_fields(data)) or datum_fields(data) or {"value": data}
    return {"value": data}


def with_arrays(fields: dict[str, Any]) -> dict[str, Any]:
    """Raw tensors of the tfrecord and lmdb writers (``x``, ``x/shape``, ``x/dtype``) as arrays."""
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
    """The features of a tf.train.Example; nothing where ``data`` is not one."""
    try:
        # views: a large value is copied once, not at every level
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
    """A Feature: one value as such, several as an array or a list. Raises ValueError."""
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
    """The fields of a Caffe Datum; nothing where ``data`` is not one."""
    try:
        fields = {_DATUM[n]: v for n, v in message_fields(data)}
    except (ValueError, KeyError):
        return {}
    return fields if isinstance(fields.get("data"), bytes) or "float_data" in fields else {}


# -- tar and npy ------------------------------------------------------------------------------------------------------


def tar_records(paths: list[Path]) -> Iterator[Record]:
    """Members that share a name up to the first dot of its last part are one sample, as webdataset has it."""
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
    """Shards of the numpy writer (``<shard>.<field>.npy``, samples along the first axis), or one array."""
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
        raise JobError(f"{path}: is no array that can be read safely: {e}") from None


# -- containers by name -----------------------------------------------------------------------------------------------


def _named(suffixes: str) -> re.Pattern[str]:
    """File names that end so, packed or not, or with a number after that (``x.tfrecord-00000-of-00010``)."""
    return re.compile(rf".*\.({suffixes})(\.(gz|bz2|xz)|-\d+-of-\d+)?")


_CONTAINERS: dict[re.Pattern[str], Callable[[list[Path]], DataSet]] = {
    _named("tfrecords?"): _tfrecord,
    _named("tar|tgz"): _tar,
    _named("rec"): _recordio,
    _named("parquet"): _parquet,
    _named("npy"): _npy,
}
"""In the order in which they are looked for in a folder."""
