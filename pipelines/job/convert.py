"""Convert: a data set from one container to another, as a spec that a job then runs. The payload stays as it is, to the
byte, unless the pictures are asked for in another size or format.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.base import nearest
from ...ops.codecs.formats import recognise
from ...ops.errors import JobError, SampleError, SpecError
from ...ops.storage.urls import Store, is_url, plain_path
from ...readers.file import MEDIA_FILTERS
from ...readers.parquet.columns import Where
from ...readers.parquet.reader import columns_of
from ...writers.formats.columns import is_extension
from ...writers.formats.extensions import KNOWN
from ...writers.shards.journal import read_journal
from ...writers.shards.manifest import sides, stages
from ...writers.shards.mirror import state_of
from ..plugins import known_writer, load_operators
from ..spec.model import is_field_name
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
from .run import JobResult, Progress, run_job

RECODED, SMALL = "decode", "decode_small"
"""The names of the steps that only pictures pass which are encoded anew: those to be resized, and smaller ones."""
FITS = "small_enough"
"""The name of the step that looks for smaller ones."""
TEST = "as_wanted"
"""The name of the step that looks at pictures, whether they are to be."""
_SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp"}
PEEK = 64
"""Records that are looked at to find the fields; readers find out about the others."""


_IN_FILE_NAMES = ("webdataset", "files", "numpy")
"""Containers in which names of fields are part of files' names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The result that is asked for."""

    to: str
    """A writer's name."""
    name: str = "data"
    samples: int | None = None
    bytes: str | None = None
    """Size of a shard: ``1GB``."""
    shuffle: bool = False
    seed: int = 0
    resize: int | None = None
    """Pixels of the shorter side."""
    enlarge: bool = False
    """Pictures that are smaller are resized, too."""
    format: str | None = None
    quality: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the writer."""
    columns: tuple[str, ...] = ()
    """Of Parquet files; all of them where there are none."""
    limit: int | None = None
    """The first so many records; all by default."""
    follow_links: bool = False
    """Read what symbolic links lead to that lie in the source and lead out of it."""

    @property
    def target(self) -> str:
        """The format of pictures that are encoded anew."""
        return self.format or "jpeg"

    @property
    def touches_pictures(self) -> bool:
        return self.resize is not None or self.format is not None or self.quality is not None


@dataclass(slots=True)
class Found:
    """How a data set is read: the reader's step, and its fields in the order of its outputs."""

    step: dict[str, Any]
    fields: dict[str, str] = field(default_factory=dict)
    """Each field's kind: ``bytes`` or ``numbers``."""
    extensions: dict[str, str] = field(default_factory=dict)
    """Of members of an archive, where they were one."""
    named: bool = False
    """Records have keys of their own, which are worth keeping."""
    key: str = ""
    """Of the fields, the one whose place the keys take."""
    lists: tuple[str, ...] = ()
    """Fields that are lists of numbers, whatever the first sample has."""
    text: tuple[str, ...] = ()
    """Fields of bytes that are texts."""
    numerals: tuple[str, ...] = ()
    """Fields of bytes that are whole numbers, written out."""


def _check_distinct(names: dict[str, str], to: str) -> None:
    """Raises SpecError where two fields would have one name in the output."""
    taken: dict[str, str] = {}
    for one, name in names.items():
        if name in taken:
            other = "convert to tfrecord, lmdb, recordio or parquet, or " if to in _IN_FILE_NAMES else ""
            raise SpecError(f"the fields {taken[name]!r} and {one!r} would both be {name!r} in {to}; {other}leave one "
                            "out (--columns, or a spec of your own)")  # fmt: skip
        taken[name] = one


def conversion(
    source: Path | str, target: Path | str, wanted: Wanted, note: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The spec that converts ``source`` into directory ``target``; both may be URLs. ``note`` gets the fields that
    get another name.

    Raises SpecError where there is nothing to convert, or the container cannot hold it.
    """
    load_operators()
    known_writer(wanted.to)
    _check_apart(str(source), str(target))
    if wanted.format is not None and wanted.format not in _SUFFIXES:
        raise SpecError(
            f"format must be {', '.join(_SUFFIXES)}, got {wanted.format!r}{nearest(wanted.format, _SUFFIXES)}"
        )
    found = find_data(str(source), wanted.columns, wanted.follow_links)
    names = {f: _plain(f) if wanted.to in _IN_FILE_NAMES else _allowed(f) for f in found.fields}
    _check_distinct(names, wanted.to)
    if renamed := [f"{f!r} as {name!r}" for f, name in names.items() if f != name]:
        note(f"names in {wanted.to} have letters, digits and a few signs only: {', '.join(renamed)}")
    variables = {f: f"field{k}" for k, f in enumerate(found.fields)}
    reader = {**found.step, "name": "Reader", "out": list(variables.values())}
    if wanted.shuffle:
        reader["shuffle"] = "full"
    graph: list[dict[str, Any]] = [reader]
    fields: dict[str, dict[str, Any]] = {}
    picture = _picture(found) if wanted.touches_pictures else None
    for f, kind in found.fields.items():
        if f in found.numerals and wanted.to not in ("webdataset", "files"):  # there they are texts again
            graph.append({"op": "number_from_text", "in": variables[f], "out": variables[f]})
            kind = "numbers"
        config: dict[str, Any] = {"encode": "keep"} if kind == "bytes" else {}
        if kind == "bytes" and wanted.to in ("webdataset", "files"):
            extension = found.extensions.get(f, "")
            config.update({"extension": extension} if is_extension(extension) else {})
        if f in found.lists and wanted.to in ("webdataset", "files"):
            config = {"encode": "npy"}  # also where a list has one number
        if f == picture and wanted.touches_pictures:
            graph += _pictures(variables[f], wanted)
            config = {"extension": _SUFFIXES[wanted.target]} if wanted.to in ("webdataset", "files") else {}
        fields[names[f]] = config
    if picture is None and wanted.touches_pictures:
        raise SpecError(f"{source} holds no pictures to resize or encode; its fields: {', '.join(found.fields)}")
    if wanted.limit is not None:
        graph[0]["limit"] = wanted.limit
    options = dict(wanted.options)
    if wanted.to == "lmdb" and found.named:
        options.setdefault("key", "sample")
    if wanted.to == "tfrecord" and found.key:
        options.setdefault("key", found.key)
    if wanted.to == "parquet":
        options.setdefault("lists", [names[f] for f in found.lists])
        options.setdefault("text", [names[f] for f in found.text])
        options.setdefault("key", found.key or next(k for k in ("key", "__key__", "") if k not in fields))
    shard = {k: v for k, v in (("samples", wanted.samples), ("bytes", wanted.bytes)) if v is not None}
    return {
        "version": 1,
        "name": wanted.name,
        "pipeline": {"seed": wanted.seed, "device": "cpu"},
        "graph": graph,
        "outputs": {names[f]: variables[f] for f in found.fields},
        "write": {"writer": wanted.to, "path": _place(target), **({"shard": shard} if shard else {}),
                  "fields": fields, **options},
        "on_error": {"policy": "skip"},
    }  # fmt: skip


def convert(
    source: Path | str,
    target: Path | str,
    wanted: Wanted,
    *,
    fresh: bool = False,
    append: bool = False,
    device: str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    by: Callable[..., JobResult] = run_job,
) -> JobResult:
    """Convert ``source`` into directory ``target``, or continue a conversion; ``append`` adds what came since.
    ``device``: where pictures are resized and encoded. ``note`` gets, line by line, the fields that get another name.
    ``by`` runs the job: `run_job`, or one with its arguments that has several workers.

    Raises SpecError, JobError.
    """
    spec = conversion(source, target, wanted, note)
    spec["pipeline"]["device"] = device
    amend = _with_kept if wanted.touches_pictures else dict
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        path = Path(folder) / "convert.json"
        path.write_text(json.dumps(spec, indent=2))
        try:
            return by(path, fresh=fresh, append=append, progress=progress, made_of=spec, amend=amend)
        except SpecError as e:
            raise SpecError(_without_place(str(e), path)) from None
        except JobError as e:
            raise JobError(_without_place(str(e), path)) from None


def _without_place(message: str, path: Path) -> str:
    """The spec's file, and its steps, are nobody's business."""
    place = rf"^{re.escape(str(path))}:\d+:\d+: (step 1 \([\w.]+\): )?"
    return re.sub(place, "", message, flags=re.MULTILINE)


_SECTIONS = {"version", "name", "pipeline", "graph", "outputs", "write", "on_error"}
_STEPS = {"decoders.image", "resize", "encoders.image", "encoded_as"}


def is_conversion(spec: Any) -> bool:
    """Whether ``spec`` is one that `conversion` could have made: without plugins, and without functions of anyone's."""

    def known(steps: Any) -> bool:
        return isinstance(steps, list) and all(
            isinstance(s, dict)
            and (known(s.get("then", [])) and known(s.get("else", [])) if "if" in s else
                 str(s.get("op")) in _STEPS or str(s.get("op")).startswith("readers."))
            for s in steps
        )  # fmt: skip

    return isinstance(spec, dict) and spec.keys() <= _SECTIONS and known(spec.get("graph"))


def _with_kept(report: Mapping[str, Any]) -> dict[str, Any]:
    """``kept`` in the samples of the report: pictures whose bytes were as they should be."""
    looked_at, recoded = (
        sum(o["samples"] for o in report["operators"] if o["name"] in names) for names in ((TEST,), (RECODED, SMALL))
    )
    samples = {**report["samples"], "kept": max(0, looked_at - recoded)}
    return {**report, "samples": samples}


def _place(target: Path | str) -> str:
    return str(target) if is_url(target) else os.path.abspath(plain_path(str(target)))


def _picture(found: Found) -> str | None:
    """The field that holds the pictures: the first of bytes, or where there are several, the first that looks so."""
    names = [f for f, kind in found.fields.items() if kind == "bytes" and f not in found.text]
    if len(names) > 1:
        arguments = {k: v for k, v in found.step.items() if k != "op"}

        def fields(outputs: list[Any]) -> dict[str, Any]:
            return dict(zip(found.fields, outputs, strict=True))

        data = read_through("", found.step["op"], arguments, fields)
        for record in itertools.islice(data.records, PEEK):
            for name in names:
                if not record.problem and _is_picture(record.fields[name].tobytes()):
                    return name
    return names[0] if names else None


def _pictures(name: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Decode, resize, encode; but what is as it should be already keeps its bytes, unless a quality is asked for, and
    what is smaller is not made larger, unless that is asked for."""
    quality = {} if wanted.quality is None else {"quality": wanted.quality}
    encode = {"op": "encoders.image", "in": name, "format": wanted.target, **quality, "out": name}
    steps: list[dict[str, Any]] = [{"op": "decoders.image", "name": RECODED, "in": name, "out": name}, encode]
    size: dict[str, Any] = {}
    if wanted.resize is not None:
        steps.insert(1, {"op": "resize", "in": name, "resize_shorter": wanted.resize, "out": name})
        size = {"shorter": wanted.resize}
        if not wanted.enlarge:
            size["or_smaller"] = True
            as_it_is = [{"op": "decoders.image", "name": SMALL, "in": name, "out": name}, encode]
            fits = {"op": "encoded_as", "name": FITS, "in": name, **size, "out": "small"}
            steps = [fits, {"if": "$small", "then": as_it_is, "else": steps}]
    if wanted.quality is not None:
        return steps
    test = {"op": "encoded_as", "name": TEST, "in": name, "format": wanted.target, **size, "out": "kept"}
    return [test, {"if": "$kept", "then": [], "else": steps}]


def _plain(name: str) -> str:
    """A field's name that can be part of a file's."""
    return re.sub(r"[^A-Za-z0-9_-]|^-", "_", name) or "_"


def _allowed(name: str) -> str:
    """A field's name that a spec takes."""
    near = re.sub(r"[^A-Za-z0-9_./-]", "_", name)
    return near if is_field_name(near) else _plain(near)


# -- what the source is -----------------------------------------------------------------------------------------------


def find_data(source: str, columns: Sequence[str] = (), follow_links: bool = False) -> Found:
    """`look` at a path or a URL, which is no unfinished output, and holds no links that lead out of it unless they are
    to be followed. Raises SpecError, JobError."""
    load_operators()
    _check_finished(source)
    if is_url(source):
        return look_behind(source, columns)
    if not follow_links:
        check_links(Path(plain_path(source)))
    return look(Path(plain_path(source)), columns)


def look(source: Path, columns: Sequence[str] = ()) -> Found:
    """How to read ``source``: files, a folder of them, shards, databases, or a finished output of ours. Raises
    SpecError, also where something would be left out."""
    found = _look(source, columns)
    if columns and found.step["op"] != "readers.parquet":
        raise SpecError(f"{source}: columns can be chosen of Parquet files only")
    return found


def _look(source: Path, columns: Sequence[str]) -> Found:
    if not source.exists():
        raise SpecError(f"{source}: there is no such file or folder")
    if (source / "data.mdb").is_file():
        return _lmdb([source])
    inside = sorted(p for p in source.iterdir() if not p.name.startswith(".")) if source.is_dir() else [source]
    kinds = [[p for p in inside if p.name.endswith(suffixes)] for suffixes in CONTAINERS]
    there = [paths for paths in kinds if paths]
    if len(there) > 1:
        names = " and ".join(paths[0].name for paths in there[:2])
        raise SpecError(f"{source}: holds containers of several kinds ({names}); convert them one kind at a time")
    for paths, reader in zip(kinds, _READERS, strict=True):
        if paths:
            return reader(paths, columns)
    if any(p.suffix == ".npy" for p in inside):
        raise SpecError(
            f"{source}: .npy files hold arrays without keys or bytes; read them with readers.numpy in a spec"
        )
    if not source.is_dir():
        raise SpecError(
            f"{source}: is no container that is known here (.tfrecord, .tar, .rec, .lmdb, .parquet, or a folder)"
        )
    return _files(source, inside)


def _check_finished(source: str) -> None:
    """Raises SpecError for an output of ours that is not complete: its last samples would be missing."""
    if is_url(source):
        info = Store(source).info()
        if info is None or info.get("type") != "directory" or "journal" not in " ".join(Store(source).folder()[1]):
            return
    elif not Path(plain_path(source)).is_dir():
        return
    with state_of(source if is_url(source) else plain_path(source)) as root:
        found = sides(root)
        journals = {side.journal.name: read_journal(side.journal) for side in (*found, *stages(root))}
        missing = next((name for name, told in journals.items() if told is None or not told.done), "")
        if missing or (found and not (root / "manifest.json").exists()):
            what = f" ({missing})" if missing else ": parts of it are missing, or dali-run merge"
            raise SpecError(f"{source}: is the output of a job that is not finished{what}; finish it first")


def _check_apart(source: str, target: str) -> None:
    """Raises SpecError where the output would become a part of what is read."""
    if is_url(source) != is_url(target):
        return
    if is_url(source):
        inside = f"{target.rstrip('/')}/".startswith(f"{source.rstrip('/')}/")
    else:
        inside = Path(plain_path(target)).resolve().is_relative_to(Path(plain_path(source)).resolve())
    if inside:
        raise SpecError(
            f"{target} lies in {source}: what is written would be read the next time; choose a folder outside"
        )


def look_behind(url: str, columns: Sequence[str] = ()) -> Found:
    """`look` at a URL; only its first container is copied here. Raises SpecError, JobError."""
    with skeleton(url, 0) as seen:
        if seen.deeper:
            raise SpecError(f"{url}: {seen.deeper} lies in a folder of a folder; only <folder>/<file> is read")
        try:
            found = look(seen.place, columns)
        except SpecError as e:
            raise SpecError(str(e).replace(str(seen.place), url)) from None
        for name in ("path", "paths"):
            if name in found.step:
                found.step[name] = list(seen.containers)
        if "file_root" in found.step:
            found.step["file_root"] = url
        return found


def _absolute(paths: list[Path]) -> list[str]:
    return [str(p.absolute()) for p in paths]


def _tfrecord(paths: list[Path], _: Sequence[str] = ()) -> Found:
    step = {"op": "readers.tfrecord", "path": _absolute(paths)}
    return _with_features(step, _first(read_through("", "readers.tfrecord", {"path": step["path"]}, _value)))


def _lmdb(paths: list[Path], _: Sequence[str] = ()) -> Found:
    step = {"op": "readers.lmdb", "path": _absolute(paths)}
    values = _first(read_through("", "readers.lmdb", {"path": step["path"]}, _value))
    if _mostly(_is_picture, values):
        return Found(step, {"image": "bytes"}, named=True)
    if _mostly(example_fields, values):
        found = _with_features({**step, "schema": "example"}, values)
    elif _mostly(lambda v: datum_fields(v).get("data") is not None, values):
        found = Found({**step, "schema": "datum"}, {"image": "bytes", "label": "numbers"})
    else:
        found = Found(step, {"value": "bytes"})
    found.named = True
    return found


def _tar(paths: list[Path], _: Sequence[str] = ()) -> Found:
    records = list(itertools.islice(tar_records(paths), PEEK))
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
    return Found(step, dict.fromkeys(extensions, "bytes"), {e: e for e in extensions}, named=True, numerals=numerals)


def _is_numeral(text: Any) -> bool:
    """A whole number as Python writes it: what is read as a number comes out as the same text again."""
    return isinstance(text, bytes) and re.fullmatch(rb"0|-?[1-9]\d{0,17}", text) is not None


def _recordio(paths: list[Path], _: Sequence[str] = ()) -> Found:
    step = {"op": "readers.mxnet", "path": _absolute(paths)}
    return Found(step, {"image": "bytes", "label": "numbers"})


def _columns(paths: list[Path], names: Sequence[str]) -> tuple[Path, list[Where], list[str]]:
    """The columns that most of ``paths`` have, the first of these files, and the columns that cannot be read. Raises
    SpecError where no more than half of the files agree, JobError where none can be read."""
    seen: list[tuple[Path, list[Where], list[str]]] = []
    problem: JobError | None = None
    for path in paths[:PEEK]:
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


def _parquet(paths: list[Path], columns: Sequence[str]) -> Found:
    path, seen, refused = _columns(paths, columns)
    if refused:
        raise SpecError(f"{path}: {'; '.join(refused)}. Name the columns to be converted (--columns)")
    key = next((w.name for w in seen if w.name in ("key", "__key__") and w.kind == "text" and not columns), "")
    kept = [w for w in seen if w.name != key]
    if not kept:
        raise SpecError(f"{paths[0]}: has no columns")
    step: dict[str, Any] = {"op": "readers.parquet", "path": _absolute(paths), "columns": [w.name for w in kept]}
    return Found(
        {**step, "key": key} if key else step,
        {w.name: "bytes" if w.kind in ("bytes", "text") else "numbers" for w in kept},
        extensions={w.name: "txt" for w in kept if w.kind == "text" and w.name not in KNOWN},
        named=bool(key),
        key=key,
        lists=tuple(w.name for w in kept if w.kind == "list"),
        text=tuple(w.name for w in kept if w.kind == "text"),
    )


def _files(source: Path, inside: list[Path]) -> Found:
    step: dict[str, Any] = {"op": "readers.file", "file_root": str(source.absolute())}
    folders = [p for p in inside if p.is_dir()]
    ours = (source / "manifest.json").is_file()
    if folders:
        beside = next((p for p in inside if p not in folders and _is_picture_name(p.name)), None)
        deeper = next((name for p in folders for name in _folders_in(p)), "")
        if beside is not None:
            raise SpecError(f"{source}: holds pictures ({beside.name}) beside folders; only <folder>/<file> is read")
        if deeper:
            raise SpecError(f"{source}: {deeper} is a folder in a folder; only <folder>/<file> is read")
        return Found({**step, "file_filters": ["[!.]*"]}, {"image": "bytes", "label": "numbers"}, named=True)
    files = _listed(source) if ours else [p.name for p in inside]
    if not files:
        raise SpecError(f"{source}: the folder is empty")
    return Found({**step, "files": files}, {"image": "bytes", "number": "numbers"}, named=True)


def _folders_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [e.path for e in entries if e.name[0] != "." and e.is_dir()]


def _is_picture_name(name: str) -> bool:
    return any(fnmatch(name.lower(), pattern) for pattern in MEDIA_FILTERS)


def _listed(output: Path) -> list[str]:
    """The files of an output of ours, without what tells about it."""
    return [name for shard, _, names in written_files(output) for name in names if name != f"{shard}.jsonl"]


_READERS: tuple[Callable[[list[Path], Sequence[str]], Found], ...] = (_tfrecord, _lmdb, _tar, _recordio, _parquet)


def _value(outputs: list[Any]) -> dict[str, Any]:
    return {"value": outputs[0].tobytes()}


def _first(data: DataSet) -> list[bytes]:
    """Values of the first records that can be read."""
    records: list[Record] = [r for r in itertools.islice(data.records, PEEK) if not r.problem]
    if not records:
        raise SpecError("the data set is empty, or none of its first records can be read")
    return [r.fields["value"] for r in records]


def _is_picture(data: bytes) -> bool:
    try:
        recognise(memoryview(data))
    except SampleError:
        return False
    return True


def _mostly(test: Callable[[bytes], Any], values: list[bytes]) -> bool:
    """Whether more than half of ``values`` pass: a damaged record among them must not change how all are read."""
    return 2 * sum(bool(test(v)) for v in values) > len(values)


def _with_features(step: dict[str, Any], values: list[bytes]) -> Found:
    """Of Examples: all features that their first ones have."""
    features: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    if not _mostly(example_fields, values):
        return Found(step, {"value": "bytes"})
    for value in values:
        for name, content in example_fields(value).items():
            if isinstance(content, list):
                raise SpecError(f"feature {name!r} holds several byte strings, which no writer here takes")
            if isinstance(content, bytes):
                features[name], kinds[name] = "string", "bytes"
            elif name not in features:
                is_float = isinstance(content, float) or (isinstance(content, np.ndarray) and content.dtype.kind == "f")
                features[name] = {"dtype": "float" if is_float else "int64", "var_len": True}
                kinds[name] = "numbers"
    return Found({**step, "features": features}, kinds)
