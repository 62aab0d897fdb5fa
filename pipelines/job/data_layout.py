"""Find out how a data set is read: the reader for a container, for files or for an output of dali-run, its fields and
their types. For `dali-run convert`, `stats` and `init`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.codecs.formats import recognise
from ...ops.errors import JobError, SampleError, SpecError
from ...ops.storage.urls import Store, is_url, join, plain_path
from ...readers.file import MEDIA_FILTERS
from ...readers.listing import lines_of
from ...readers.mxnet import labels_of
from ...readers.parquet.columns import ReadableColumn
from ...readers.parquet.lance import columns_of as lance_columns
from ...readers.parquet.reader import columns_of
from ...readers.streaming.kinds import index_at
from ...writers.base import ENCODED, find_writer
from ...writers.bytes import sidecar
from ...writers.formats.extensions import KNOWN, alternatives
from ...writers.formats.offset_table import Value
from ...writers.shards.journal import read_journal
from ...writers.shards.manifest import addition_files_of, output_files_of
from ...writers.shards.mirror import state_of
from ..plugins import load_operators
from ..tools.datasets import (
    DataSet,
    Record,
    check_links,
    datum_fields,
    example_fields,
    read_through,
    tar_records,
    written_files,
)
from ..tools.remote_sample import CONTAINERS, skeleton

KEYS = ("key", "__key__")
"""Names of columns (or features) that are taken for the samples' keys."""
MAX_EXAMINED = 64
"""Maximum number of records that are examined to find the fields; readers check the remaining ones."""
MAX_EXAMINED_BYTES = 1 << 26
"""Total size in bytes of the examined records after which no further record is examined."""


@dataclass(slots=True)
class SourceLayout:
    """Layout of a data set that was examined: the step of a spec that reads it, and facts about each field that the
    reader outputs. Created by `look`."""

    step: dict[str, Any]
    fields: dict[str, str] = field(default_factory=dict)
    """Kind of each field, ``bytes`` or ``numbers``, by name, in the order of the reader's outputs."""
    extensions: dict[str, str] = field(default_factory=dict)
    """File extension of each field that was an archive member or a file, by the field's name."""
    named: bool = False
    """Whether records have keys of their own, which the output should keep."""
    key: str = ""
    """Name of the column or feature of the source that holds the records' keys, and is therefore not among `fields`;
    empty if there is none."""
    lists: tuple[str, ...] = ()
    """Names of the fields that are lists of numbers, even if the first sample has only one number."""
    text: tuple[str, ...] = ()
    """Names of the fields of bytes that hold text."""
    numerals: tuple[str, ...] = ()
    """Names of the fields of bytes that hold an integer as text."""
    arrays: tuple[str, ...] = ()
    """Names of the fields of bytes that are .npy files, which a writer of dali-run created from numbers."""
    casts: dict[str, str] = field(default_factory=dict)
    """NumPy types of fields of numbers that a container stores in another type, by the field's name."""
    whole: tuple[str, ...] = ()
    """Names of the fields that are stored as floats and whose values are all integers."""
    raw: tuple[str, ...] = ()
    """Names of the fields with arrays whose shape and type are stored in other fields."""


def find_data(source: str, columns: Sequence[str] = (), follow_links: bool = False) -> SourceLayout:
    """Return the layout of the data set at a path or a URL.

    Raises SpecError for an unfinished output, and for links that point outside the data set (unless ``follow_links`` is
    set). Also raises JobError."""
    load_operators()
    _check_finished(source)
    if is_url(source):
        return look_behind(source, columns)
    if not follow_links:
        check_links(Path(plain_path(source)))
    return look(Path(plain_path(source)), columns)


def look(source: Path, columns: Sequence[str] = (), *, in_part: bool = False) -> SourceLayout:
    """Return the layout of the data set ``source``: files, a folder of files, shards, databases, or a finished output
    of dali-run.

    ``in_part``: only the first container of the data set is on this machine. Raises SpecError if the data set is not
    recognised, or if some of it would be left out."""
    layout = _look(source, columns, in_part)
    if columns and layout.step["op"] != "readers.parquet":
        raise SpecError(f"{source}: columns can be selected only from Parquet files")
    return layout


def _look(source: Path, columns: Sequence[str], in_part: bool) -> SourceLayout:
    if not source.exists():
        raise SpecError(f"{source}: there is no such file or folder")
    if (source / "data.mdb").is_file():
        return _lmdb([source])
    if (write := write_section(source)) is not None:
        try:
            return _own_output(source, write, in_part)
        except (LookupError, TypeError, AttributeError) as e:  # it lacks an entry
            raise SpecError(
                f"{source / 'manifest.json'}: is not a manifest of dali-run ({type(e).__name__}: {e})"
            ) from None
    if (streaming := _streaming(source)) is not None:
        return streaming
    if (source / "_versions").is_dir():
        return _lance(source)
    inside = sorted((e for e in _entries(source) if e.name[0] != "."), key=lambda e: e.name)
    names = [e.name for e in inside] if source.is_dir() else [source.name]
    if (layout := _containers(source, names, columns)) is not None:
        return layout
    if any(n.endswith(".npy") for n in names):
        raise SpecError(
            f"{source}: .npy files hold arrays without keys or bytes; read them with readers.numpy in a spec"
        )
    if not source.is_dir():
        raise SpecError(f"{source}: is not a known container (.tfrecord, .tar, .rec, .lmdb, .parquet, or a folder)")
    return _files(source, inside)


def _containers(source: Path, names: Sequence[str], columns: Sequence[str]) -> SourceLayout | None:
    """Return the layout of containers among ``names``; None without one. Raises SpecError for several kinds."""
    root = source if source.is_dir() else source.parent
    kinds = [
        [p for p in (root / n for n in names if n.endswith(suffixes)) if p.is_file() or (p / "data.mdb").is_file()]
        for suffixes in CONTAINERS
    ]
    present = [paths for paths in kinds if paths]
    if len(present) > 1:
        examples = " and ".join(paths[0].name for paths in present[:2])
        raise SpecError(f"{source}: holds containers of several kinds ({examples}); convert them one kind at a time")
    for paths, reader in zip(kinds, _READERS, strict=True):
        if paths:
            return reader(paths, columns)
    return None


def _entries(source: Path) -> list[os.DirEntry[str]]:
    if not source.is_dir():
        return []
    with os.scandir(source) as entries:
        return list(entries)


def write_section(source: Path) -> Mapping[str, Any] | None:
    """Return the ``write`` section of the job whose output is in the folder ``source``. Return None if the folder is
    not an output of dali-run; its ``manifest.json`` may come from another program. Raises SpecError if the manifest of
    a job is damaged."""
    path = source / "manifest.json"
    if not path.is_file():
        return None
    manifest: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, JobError):
        manifest = sidecar.read_json(path)
    if manifest.get("format") != "dali-run-manifest" and not output_files_of(source):
        return None
    written_files(source)
    with contextlib.suppress(LookupError, TypeError, AttributeError):
        write = manifest["write"]
        if all(isinstance(config, dict) for config in write["fields"].values()):
            return write if write["writer"] in _OWN_WRITERS else None
    raise SpecError(f"{path}: is not a manifest of dali-run")


def _own_output(source: Path, write: Mapping[str, Any], in_part: bool) -> SourceLayout:
    """Return the layout of an output of dali-run. The fields and their types come from the manifest of the job that
    wrote it."""
    fields: Mapping[str, Mapping[str, Any]] = write["fields"]
    names = [name for _, _, files in written_files(source) for name in files]
    suffix = {"lmdb": "data.mdb", "files": ".jsonl"}.get(write["writer"], find_writer(write["writer"]).suffix)
    listed = {n.partition("/")[0] for n in names}
    unlisted = [
        e for e in os.listdir(source) if e not in listed and e.endswith(tuple(x for k in CONTAINERS for x in k))
    ]
    if unlisted:
        raise SpecError(f"{source}: holds containers of several kinds or jobs: its manifest does not list "
                        f"{min(unlisted)}; move that elsewhere")  # fmt: skip
    paths = [source / n for n in names if n.endswith(suffix)]
    if write["writer"] == "files":
        listings = {f"{shard}.jsonl" for shard, _, _ in written_files(source)}
        paths = [p for p in paths if p.name in listings and p.parent == source]
    missing = [p for p in paths if not p.exists()]
    if missing and not in_part:
        raise SpecError(f"{missing[0]} is missing, though the manifest lists it; dali-run verify {source} says more")
    paths = [p for p in paths if p not in missing]
    if not paths or not sum(samples for _, samples, _ in written_files(source)):
        raise SpecError(f"{source}: the data set is empty")
    layout = _OWN_WRITERS[write["writer"]]([p.parent if p.name == "data.mdb" else p for p in paths], write)
    text = (f for f, kind in layout.fields.items() if kind == "bytes" and _is_text(fields.get(f, {})))
    layout.text = tuple(dict.fromkeys((*layout.text, *text)))
    layout.lists += tuple(
        f for f, kind in layout.fields.items() if f not in layout.lists
        and (fields.get(f, {}).get("encode") == "npy" if f in layout.arrays else
             kind == "numbers" and fields.get(f, {}).get("extension") == "npy")
    )  # fmt: skip
    for f in layout.fields:
        if (extension := fields.get(f, {}).get("extension")) and layout.fields[f] == "bytes" and f not in layout.arrays:
            layout.extensions[f] = extension
    return layout


def _streaming(folder: Path) -> SourceLayout | None:
    """Return the layout of a folder with the index.json of MDS or litData; None for any other folder."""
    found = index_at(str(folder)) if (folder / "index.json").is_file() else None
    if found is None:
        return None
    reader, index = found
    if not sum(index.samples):
        raise SpecError(f"{folder}: the data set is empty")
    text = [f.name for f in index.fields if f.encoding in ("str", "text")]
    key = next((k for k in KEYS if k in text and len(index.fields) > 1), "")
    kept = [f for f in index.fields if f.name != key]
    step: dict[str, Any] = {"op": reader, "path": str(folder.absolute()), "columns": [f.name for f in kept]}
    return SourceLayout(
        {**step, "key": key} if key else step,
        {f.name: "bytes" if f.kind == "bytes" else "numbers" for f in kept},
        extensions={f.name: "txt" for f in kept if f.name in text and f.name not in KNOWN},
        named=bool(key), key=key, text=tuple(f.name for f in kept if f.name in text),
        lists=tuple(f.name for f in kept if f.kind == "array" and f.encoding != "numpy"),
    )  # fmt: skip


def _our_streaming(paths: list[Path], write: Mapping[str, Any]) -> SourceLayout:
    """Return the layout of MDS or litData that dali-run wrote. If litData stored numbers in another type, the original
    type comes from the manifest."""
    found = _streaming(paths[0].parent)
    if found is None:
        raise SpecError(f"{paths[0].parent}: its index.json is missing, or is not what the manifest says")
    schema = sidecar.read_json(paths[0].parent / "manifest.json").get("schema", {}).get("fields", {})
    stored = {name: Value(*told) for name, told in schema.get("columns", {}).items()}
    if write["writer"] == "litdata":
        found.casts = {n: np.dtype(v.dtype).name for n, v in stored.items() if v.kind == "number" and n in found.fields}
    found.lists = tuple(n for n, v in stored.items() if v.kind == "array" and v.ndim == 1 and n in found.fields)
    return found


def _is_text(field: Mapping[str, Any]) -> bool:
    """Return whether a field, as the manifest describes it, is text."""
    return field.get("encode") == "text" or field.get("extension") == "txt"


def _own_tfrecord(paths: list[Path], write: Mapping[str, Any]) -> SourceLayout:
    """Return the layout of TFRecords that dali-run wrote. The manifest says which feature holds keys, if any."""
    return _tfrecord(paths, keys=(write["options"].get("key", ""),))


def _own_recordio(paths: list[Path], write: Mapping[str, Any]) -> SourceLayout:
    """Return the layout of RecordIO that dali-run wrote. The manifest has the names of the image and of the label."""
    layout = _recordio(paths)
    image = next((f for f, c in write["fields"].items() if c.get("encode") in ENCODED), "image")
    label = next((f for f in write["fields"] if f != image), "label")
    return _renamed(layout, {"image": image, "label": label})


def _own_lmdb(paths: list[Path], write: Mapping[str, Any]) -> SourceLayout:
    """Return the layout of LMDB databases that dali-run wrote. The name of a single field is in the manifest and not in
    the values. The databases have different keys."""
    layout = _lmdb(paths)
    layout.step["prefix_keys"] = False
    if len(write["fields"]) == 1 and len(layout.fields) == 1 and "features" not in layout.step:
        return _renamed(layout, dict.fromkeys(layout.fields, next(iter(write["fields"]))))
    return layout


def _renamed(layout: SourceLayout, names: Mapping[str, str]) -> SourceLayout:
    layout.fields = {names[f]: kind for f, kind in layout.fields.items()}
    layout.lists, layout.whole = (tuple(names[f] for f in fields) for fields in (layout.lists, layout.whole))
    return layout


def _own_tar(paths: list[Path], write: Mapping[str, Any]) -> SourceLayout:
    """Return the layout of tar files of dali-run. The members of a sample are in the order of its fields."""
    fields = write["fields"]
    records = first_records(tar_records(paths))
    complete = [r for r in records if len(r.fields) == len(fields)]
    if not complete:
        raise SpecError(f"{paths[0]}: none of its first samples has the fields of the manifest ({', '.join(fields)})")
    seen = {f: list(dict.fromkeys(list(r.fields)[k] for r in complete)) for k, f in enumerate(fields)}
    choices = {f: [*seen[f], *(e for e in alternatives(f, seen[f]) if e not in seen[f])] for f in fields}
    step = {"op": "readers.webdataset", "paths": _absolute(paths), "ext": [";".join(choices[f]) for f in fields]}
    values = {f: [list(r.fields.values())[k] for r in complete] for k, f in enumerate(fields)}
    numbers = [f for f, config in fields.items() if config.get("encode", "auto") in ("auto", "npy", "raw")]
    arrays = tuple(f for f in numbers if all(e.endswith("npy") for e in seen[f]) and _are_arrays(values[f]))
    numerals = tuple(f for f in fields if f not in arrays and all(map(_is_numeral, values[f])))
    extensions = {f: seen[f][0] for f in fields if len(seen[f]) == 1}
    return SourceLayout(step, dict.fromkeys(fields, "bytes"), extensions, named=True, numerals=numerals, arrays=arrays)


def _are_arrays(values: Sequence[bytes]) -> bool:
    """Return whether all ``values`` are .npy files with numbers."""
    return all(v.startswith(b"\x93NUMPY") for v in values)


def _own_files(paths: list[Path], write: Mapping[str, Any]) -> SourceLayout:
    """Return the layout of files that dali-run wrote. The output's listings tell which files belong to one sample, and
    contain the fields that are single numbers."""
    fields = write["fields"]
    rows = [row for path in paths for row in lines_of(str(path))]
    kinds: dict[str, str] = {}
    stored = {f for f in fields if not all(f"field:{f}" in row for row in rows)}
    for f in fields:
        values = [row.get(f"field:{f}") for row in rows]
        if f not in stored:
            kinds[f] = "int" if all(isinstance(v, int) for v in values) else "float"
        elif any(v is not None for v in values):
            raise SpecError(f"{paths[0].parent}: the field {f!r} has one number in some samples and several in others, "
                            "which convert cannot combine; write a spec")  # fmt: skip
        else:
            kinds[f] = "bytes"
    step = {"op": "readers.listing", "path": _absolute(paths), "fields": kinds}
    order = [f for f in fields if f in stored]
    endings = {f: {row["files"][k].rpartition(".")[2] for row in rows if len(row["files"]) == len(order)}
               for k, f in enumerate(order)}  # fmt: skip
    arrays = tuple(f for f in order if endings[f] == {"npy"} and fields[f].get("encode", "auto") != "keep")
    first = [row for row in rows if len(row["files"]) == len(order)][:MAX_EXAMINED]
    root = paths[0].parent
    numerals = tuple(
        f for k, f in enumerate(order)
        if first and f not in arrays and all(_is_numeral((root / row["files"][k]).read_bytes()) for row in first)
    )  # fmt: skip
    return SourceLayout(step, {f: "bytes" if kind == "bytes" else "numbers" for f, kind in kinds.items()},
                 {f: next(iter(e)) for f, e in endings.items() if len(e) == 1}, named=True, arrays=arrays,
                 numerals=numerals)  # fmt: skip


_OWN_WRITERS: dict[str, Callable[[list[Path], Mapping[str, Any]], SourceLayout]] = {
    "tfrecord": _own_tfrecord,
    "array_record": lambda paths, write: _array_record(paths, keys=(write["options"].get("key", "key"),)),
    "recordio": _own_recordio,
    "lmdb": _own_lmdb,
    "webdataset": _own_tar,
    "files": _own_files,
    "parquet": lambda paths, _: _parquet(paths, ()),
    "mds": _our_streaming,
    "litdata": _our_streaming,
    "lance": lambda paths, _: _lance(paths[0].parent.parent),
}
"""For each writer of dali-run, by name: the function that returns the layout of its outputs."""


def _check_finished(source: str) -> None:
    """Raise SpecError if ``source`` is an unfinished output of dali-run, whose last samples are missing."""
    if is_url(source):
        info = Store(source).info()
        if info is None or info.get("type") != "directory" or "journal" not in " ".join(Store(source).folder()[1]):
            return
    elif not Path(plain_path(source)).is_dir():
        return
    with state_of(source if is_url(source) else plain_path(source)) as root:
        files_of_output = output_files_of(root)
        journals = {
            files.journal.name: read_journal(files.journal) for files in (*files_of_output, *addition_files_of(root))
        }
        missing = next((name for name, contents in journals.items() if contents is None or not contents.done), "")
        if missing or (files_of_output and not (root / "manifest.json").exists()):
            missing_text = f" ({missing})" if missing else ": parts of it are missing, or dali-run merge"
            raise SpecError(f"{source}: is the output of a job that is not finished{missing_text}; finish it first")


def look_behind(url: str, columns: Sequence[str] = ()) -> SourceLayout:
    """Return the layout of the data set at a URL. Only its first container is copied to this machine. Raises SpecError
    and JobError."""
    with skeleton(url, 0) as seen:
        try:
            layout = look(seen.place, columns, in_part=True)
        except SpecError as e:
            raise SpecError(str(e).replace(str(seen.place), url)) from None
        if layout.step["op"] == "readers.listing":
            layout.step["path"] = [join(url, Path(p).name) for p in layout.step["path"]]
            return layout
        if seen.deeper:
            raise SpecError(f"{url}: {seen.deeper} is in a folder of a folder; only <folder>/<file> is read")
        for name in ("path", "paths"):
            if name in layout.step:
                layout.step[name] = list(seen.containers)
        if "file_root" in layout.step:
            layout.step["file_root"] = url
        return layout


def _absolute(paths: list[Path]) -> list[str]:
    return [str(p.absolute()) for p in paths]


def _tfrecord(
    paths: list[Path], _: Sequence[str] = (), keys: Sequence[str] = KEYS, reader: str = "readers.tfrecord"
) -> SourceLayout:  # fmt: skip
    """Return the layout of TFRecords or ArrayRecords. Their records are TensorFlow Examples, or plain bytes. The first
    feature of bytes whose name is in ``keys`` holds the samples' keys."""
    step = {"op": reader, "path": _absolute(paths)}
    layout = _with_features(step, _first(read_through("", reader, {"path": step["path"]}, _value)))
    key = next((k for k in keys if layout.fields.get(k) == "bytes" and len(layout.fields) > 1), "")
    if key:
        del layout.fields[key], layout.step["features"][key]
        layout.step["key"], layout.named, layout.key = key, True, key
    return layout


def _array_record(paths: list[Path], _: Sequence[str] = (), keys: Sequence[str] = KEYS) -> SourceLayout:
    return _tfrecord(paths, keys=keys, reader="readers.array_record")


def _lmdb(paths: list[Path], _: Sequence[str] = ()) -> SourceLayout:
    step = {"op": "readers.lmdb", "path": _absolute(paths)}
    values = _first(read_through("", "readers.lmdb", {"path": step["path"]}, _value))
    if _mostly(is_picture, values):
        return SourceLayout(step, {"image": "bytes"}, named=True)
    if _mostly(example_fields, values):
        layout = _with_features({**step, "schema": "example"}, values)
    elif _mostly(lambda v: datum_fields(v).get("data") is not None, values):
        layout = SourceLayout({**step, "schema": "datum"}, {"image": "bytes", "label": "numbers"})
    else:
        layout = SourceLayout(step, {"value": "bytes"})
    layout.named = True
    return layout


def _tar(paths: list[Path], _: Sequence[str] = ()) -> SourceLayout:
    records = first_records(tar_records(paths))
    extensions = list(dict.fromkeys(e for r in records for e in r.fields))
    if not extensions:
        raise SpecError(f"{paths[0]}: holds no samples")
    for r in records:
        for e in r.fields:
            if not all(e.split(";")):
                raise SpecError(f"{r.source}: member {f'{r.key}.{e}'!r} has no extension by which it could be read; "
                                "rename it, or leave the archive out")  # fmt: skip
    step = {"op": "readers.webdataset", "paths": _absolute(paths), "ext": extensions}
    numerals = tuple(e for e in extensions if all(_is_numeral(r.fields[e]) for r in records if e in r.fields))
    return SourceLayout(
        step, dict.fromkeys(extensions, "bytes"), {e: e for e in extensions}, named=True, numerals=numerals
    )


def _is_numeral(text: Any) -> bool:
    """Return whether ``text`` is an integer exactly as Python writes it. Such a text can be read as a number and
    written again without loss."""
    return isinstance(text, bytes) and re.fullmatch(rb"0|-?[1-9]\d{0,17}", text) is not None


def _recordio(paths: list[Path], _: Sequence[str] = ()) -> SourceLayout:
    """Return the layout of RecordIO. RecordIO stores labels as floats. The labels of all records are read to find out
    whether they are integers, and whether each record has one."""
    step = {"op": "readers.mxnet", "path": _absolute(paths)}
    count, integers, lists = labels_of(step["path"])
    if not count:
        raise SpecError(f"{paths[0]}: the data set is empty")
    return SourceLayout(
        step, {"image": "bytes", "label": "numbers"}, whole=("label",) * integers, lists=("label",) * lists
    )


def _columns(paths: list[Path], names: Sequence[str]) -> tuple[Path, list[ReadableColumn], list[str]]:
    """Return the first of ``paths`` that has the columns of most files, these columns, and the names of those that
    cannot be read. Raises SpecError if no more than half of the files agree, and JobError if none can be read."""
    seen: list[tuple[Path, list[ReadableColumn], list[str]]] = []
    problem: JobError | None = None
    for path in paths[:MAX_EXAMINED]:
        try:
            seen.append((path, *columns_of(str(path), names)))
        except JobError as e:
            problem = problem or e
    if not seen:
        assert problem is not None
        raise problem
    same = [sum(one[1:] == other[1:] for other in seen) for one in seen]
    model = seen[same.index(max(same))]
    if 2 * max(same) <= len(seen):
        other = next(one for one in seen if one[1:] != model[1:])
        lists = " and ".join(f"{path} has {', '.join(w.name for w in found)}" for path, found, _ in (model, other))
        raise SpecError(f"the columns differ: {lists}; name those that all have (--columns), or leave files out")
    return model


def _of_columns(step: dict[str, Any], kept: Sequence[ReadableColumn], key: str) -> SourceLayout:
    """Return the layout of a table with the columns ``kept``. ``key`` is the column of keys, or empty."""
    return SourceLayout(
        {**step, "key": key} if key else step,
        {w.name: "bytes" if w.kind in ("bytes", "text") else "numbers" for w in kept},
        extensions={w.name: "txt" for w in kept if w.kind == "text" and w.name not in KNOWN},
        named=bool(key),
        key=key,
        lists=tuple(w.name for w in kept if w.kind == "list"),
        text=tuple(w.name for w in kept if w.kind == "text"),
    )


def _lance(folder: Path) -> SourceLayout:
    """Return the layout of the Lance data set in ``folder``."""
    seen, refused = lance_columns(str(folder))
    if refused:
        raise SpecError(f"{folder}: {'; '.join(refused)}; write a spec with readers.lance")
    key = next((w.name for w in seen if w.name in KEYS and w.kind == "text" and len(seen) > 1), "")
    kept = [w for w in seen if w.name != key]
    return _of_columns(
        {"op": "readers.lance", "path": str(folder.absolute()), "columns": [w.name for w in kept]}, kept, key
    )


def _parquet(paths: list[Path], columns: Sequence[str]) -> SourceLayout:
    path, seen, unreadable = _columns(paths, columns)
    if unreadable:
        raise SpecError(f"{path}: {'; '.join(unreadable)}. Name the columns to be converted (--columns)")
    key = next((w.name for w in seen if w.name in KEYS and w.kind == "text" and not columns), "")
    columns_read = [w for w in seen if w.name != key]
    if not columns_read:
        raise SpecError(f"{paths[0]}: has no columns")
    step: dict[str, Any] = {
        "op": "readers.parquet",
        "path": _absolute(paths),
        "columns": [w.name for w in columns_read],
    }
    if not read_through("", step["op"], {k: v for k, v in step.items() if k != "op"}, None).count:
        raise SpecError(f"{paths[0]}: the data set is empty: it has columns and no rows")
    return _of_columns(step, columns_read, key)


def _files(source: Path, inside: list[os.DirEntry[str]]) -> SourceLayout:
    """Return the layout of a folder that contains files, or one folder of files for each class."""
    step: dict[str, Any] = {"op": "readers.file", "file_root": str(source.absolute())}
    folders = [p for p in inside if p.is_dir()]
    if folders:
        image_name = next((p.name for p in inside if _is_picture_name(p.name) and not p.is_dir()), None)
        names, deeper = _names_in(folders)
        if image_name is not None:
            raise SpecError(f"{source}: holds images ({image_name}) next to folders; only <folder>/<file> is read")
        if deeper:
            raise SpecError(f"{source}: {deeper} is a folder in a folder; only <folder>/<file> is read")
        layout = SourceLayout({**step, "file_filters": ["[!.]*"]}, {"image": "bytes", "label": "numbers"}, named=True)
    else:
        names = [p.name for p in inside]
        if not names:
            raise SpecError(f"{source}: the folder is empty")
        layout = SourceLayout({**step, "files": names}, {"image": "bytes", "number": "numbers"}, named=True)
    endings = {os.path.splitext(name)[1] for name in names}
    if len(endings) == 1 and (ending := endings.pop()[1:]).lower() in KNOWN:
        layout.extensions["image"] = ending  # also for a file without content
    return layout


def _names_in(folders: Sequence[os.DirEntry[str]]) -> tuple[list[str], str]:
    """Return the names of the files in ``folders``, without hidden files, and the path of one folder inside them; the
    path is empty if there is none."""
    names, deeper = [], ""
    for folder in folders:
        with os.scandir(folder) as entries:
            for e in entries:
                if e.name[0] != ".":
                    names.append(e.name)
                    deeper = deeper or (e.path if e.is_dir() else "")
    return names, deeper


def _is_picture_name(name: str) -> bool:
    return any(fnmatch(name.lower(), pattern) for pattern in MEDIA_FILTERS)


_READERS: tuple[Callable[[list[Path], Sequence[str]], SourceLayout], ...] = (
    _tfrecord,
    _lmdb,
    _tar,
    _recordio,
    _parquet,
    _array_record,
)


def _value(outputs: list[Any]) -> dict[str, Any]:
    return {"value": outputs[0].tobytes()}


def first_records(records: Iterator[Record]) -> list[Record]:
    """Return the first of ``records``: at most `MAX_EXAMINED`, and none after their total size exceeds
    `MAX_EXAMINED_BYTES`."""
    first: list[Record] = []
    nbytes = 0
    while len(first) < MAX_EXAMINED and nbytes < MAX_EXAMINED_BYTES and (record := next(records, None)) is not None:
        first.append(record)
        nbytes += sum(len(v) for v in record.fields.values() if isinstance(v, bytes))
    return first


def _first(data: DataSet) -> list[bytes]:
    """Return the values of the first records of ``data`` that can be read."""
    records = [r for r in first_records(data.records) if not r.problem]
    if not records:
        raise SpecError("the data set is empty, or none of its first records can be read")
    return [r.fields["value"] for r in records]


def is_picture(data: bytes) -> bool:
    """Return whether ``data`` begins like an encoded image."""
    try:
        recognise(memoryview(data))
    except SampleError:
        return False
    return True


def _mostly(test: Callable[[bytes], Any], values: list[bytes]) -> bool:
    """Return whether more than half of ``values`` pass ``test``. The majority decides, so that one damaged record
    changes nothing."""
    return 2 * sum(bool(test(v)) for v in values) > len(values)


def _with_features(step: dict[str, Any], values: list[bytes]) -> SourceLayout:
    """Return the layout of TensorFlow Examples: their fields are all features that the examined ``values`` have."""
    features: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    several: set[str] = set()
    if not _mostly(example_fields, values):
        return SourceLayout(step, {"value": "bytes"})
    for value in values:
        for name, content in example_fields(value).items():
            if isinstance(content, list):
                raise SpecError(f"feature {name!r} holds several byte strings, which no writer supports")
            if isinstance(content, bytes):
                features[name], kinds[name] = "string", "bytes"
                continue
            several |= {name} if isinstance(content, np.ndarray) and len(content) else set()
            if name not in features:
                is_float = isinstance(content, float) or (isinstance(content, np.ndarray) and content.dtype.kind == "f")
                features[name] = {"dtype": "float" if is_float else "int64", "var_len": True}
                kinds[name] = "numbers"
    arrays = tuple(f for f in features if {f"{f}/shape", f"{f}/dtype"} <= features.keys())
    lists = tuple(f for f, kind in kinds.items() if kind == "numbers" and f in several and not f.endswith("/shape"))
    return SourceLayout({**step, "features": features}, kinds, raw=arrays, lists=lists)
