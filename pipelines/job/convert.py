"""Convert: a data set from one container to another, as a spec that a job then runs. The payload stays as it is, to the
byte, unless the pictures are asked for in another size or format.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ops.base import nearest
from ...ops.errors import JobError, SpecError
from ...ops.storage.urls import is_url, plain_path
from ...writers.formats.columns import is_extension
from ..plugins import known_writer, load_operators
from ..spec.text import is_field_name
from ..tools.datasets import (
    read_through,
)
from .data_layout import KEYS, SourceLayout, find_data, first_records, is_picture
from .run import JobResult, Progress, run_job

RECODED, SMALL = "decode", "decode_small"
"""The names of the steps that only pictures pass which are encoded anew: those to be resized, and smaller ones."""
FITS = "small_enough"
"""The name of the step that looks for smaller ones."""
TEST = "as_wanted"
"""The name of the step that looks at pictures, whether they are to be."""
_SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp"}

_TYPED = ("parquet", "mds", "litdata")
"""Containers whose columns are texts or bytes."""
_DALI_NAMES = {"float32": "FLOAT"}
"""DALI's names of types that are not NumPy's in capitals."""
_IN_FILE_NAMES = ("webdataset", "files", "numpy")
"""Containers in which names of fields are part of files' names."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
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
    source: Path | str, target: Path | str, wanted: ConvertOptions, note: Callable[[str], None] = lambda _: None
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
    if found.raw and wanted.to in (*_IN_FILE_NAMES, "recordio"):
        raise SpecError(f"{source}: the field {found.raw[0]!r} holds arrays whose shape and type are fields of their "
                        f"own, which {wanted.to} would tear apart; convert to tfrecord, lmdb or parquet, or write a "
                        "spec")  # fmt: skip
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
        step = {"in": variables[f], "out": variables[f]}
        if f in found.numerals and wanted.to not in ("webdataset", "files"):  # there they are texts again
            graph.append({"op": "number_from_text", **step})
            kind = "numbers"
        if f in found.arrays:
            graph.append({"op": "decoders.numpy", **step})
            kind = "numbers"
        if f in found.casts:
            graph.append({"op": "cast", "dtype": _DALI_NAMES.get(found.casts[f], found.casts[f].upper()), **step})
        if f in found.whole:
            graph.append({"op": "cast", "dtype": "INT64", **step})
        is_text = f in found.text and wanted.to in _TYPED
        config: dict[str, Any] = {"encode": "text" if is_text else "keep"} if kind == "bytes" else {}
        # also where no file has this extension: the manifest keeps it, and says that the field is a text or a list
        extension = found.extensions.get(f, "") or ("txt" if f in found.text else "") if kind == "bytes" else ""
        config.update({"extension": extension} if is_extension(extension) else {})
        if f in found.lists:
            in_files = wanted.to in ("webdataset", "files")
            config = {"encode": "npy"} if in_files else {"extension": "npy"}  # also where a list has one number
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
    if wanted.to == "tfrecord" and found.named:
        options.setdefault("key", found.key or next(k for k in (*KEYS, "") if k not in fields))
    if wanted.to == "recordio" and found.named:
        note("recordio has no room for the samples' keys and for names of fields: samples are numbered")
    if wanted.to in _TYPED:
        options.setdefault("lists", [names[f] for f in found.lists])
        options.setdefault("key", found.key or next(k for k in (*KEYS, "") if k not in fields))
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
    wanted: ConvertOptions,
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
_STEPS = {"decoders.image", "decoders.numpy", "resize", "encoders.image", "encoded_as", "number_from_text", "cast"}


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


def _picture(found: SourceLayout) -> str | None:
    """The field that holds the pictures: the first of bytes, or where there are several, the first that looks so."""
    names = [f for f, kind in found.fields.items() if kind == "bytes" and f not in found.text]
    if len(names) > 1:
        arguments = {k: v for k, v in found.step.items() if k != "op"}

        def fields(outputs: list[Any]) -> dict[str, Any]:
            return dict(zip(found.fields, outputs, strict=True))

        data = read_through("", found.step["op"], arguments, fields)
        for record in first_records(data.records):
            for name in names:
                if not record.problem and is_picture(record.fields[name].tobytes()):
                    return name
    return names[0] if names else None


def _pictures(name: str, wanted: ConvertOptions) -> list[dict[str, Any]]:
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
