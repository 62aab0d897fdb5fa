"""Convert a data set from one container to another, by building a spec that a job then runs. Called by `dali-run
convert`.

The bytes of records stay the same, unless images are to have another size or format.
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
"""Names of two steps of the generated spec. Both decode images to encode them again: the first for images that are also
resized, the second for images that are small enough."""
FITS = "small_enough"
"""Name of the step of the generated spec that tests whether an image is smaller than the requested size."""
TEST = "as_wanted"
"""Name of the step of the generated spec that tests whether an image already has the requested size and format."""
_SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp"}

_TYPED = ("parquet", "lance", "mds", "litdata")
"""Writers of containers whose columns have a type, so that text differs from bytes."""
_DALI_NAMES = {"float32": "FLOAT"}
"""DALI's names of NumPy types, for types whose name in capitals is not DALI's."""
_IN_FILE_NAMES = ("webdataset", "files", "numpy")
"""Writers that make names of fields a part of file names."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of one conversion of a data set into another format. Created by the command line."""

    to: str
    """Name of the target writer."""
    name: str = "data"
    samples: int | None = None
    bytes: str | None = None
    """Size of each shard of the output, for example ``1GB``; None for the default."""
    shuffle: bool = False
    seed: int = 0
    resize: int | None = None
    """Length of the shorter side of resized images, in pixels; None to keep the size."""
    enlarge: bool = False
    """Whether images that are smaller than ``resize`` are also resized."""
    format: str | None = None
    quality: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the target writer, by name."""
    columns: tuple[str, ...] = ()
    """Columns of a Parquet source to convert; empty for all."""
    limit: int | None = None
    """Number of records to convert, counted from the first; None for all."""
    follow_links: bool = False
    """Whether to follow symbolic links that point outside the source folder."""

    @property
    def target(self) -> str:
        """Format in which images are encoded again, such as ``jpeg``."""
        return self.format or "jpeg"

    @property
    def touches_pictures(self) -> bool:
        """Whether images are resized or encoded again."""
        return self.resize is not None or self.format is not None or self.quality is not None


def _check_distinct(names: dict[str, str], to: str) -> None:
    """Raise SpecError if the writer ``to`` would give two fields the same name in its output."""
    used: dict[str, str] = {}
    for field_name, name in names.items():
        if name in used:
            other = "convert to tfrecord, lmdb, recordio or parquet, or " if to in _IN_FILE_NAMES else ""
            raise SpecError(
                f"the fields {used[name]!r} and {field_name!r} would both be {name!r} in {to}; {other}leave one out "
                "(--columns, or a spec of your own)"
            )
        used[name] = field_name


def conversion(
    source: Path | str,
    target: Path | str,
    requested: ConvertOptions,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the spec of a job that converts ``source`` into directory ``target``; both may be URLs.

    ``note`` is called with a text if fields have to be renamed. Raises SpecError if there is nothing to convert, or
    if the target format cannot hold the data."""
    load_operators()
    known_writer(requested.to)
    _check_apart(str(source), str(target))
    if requested.format is not None and requested.format not in _SUFFIXES:
        raise SpecError(
            f"format must be {', '.join(_SUFFIXES)}, got {requested.format!r}{nearest(requested.format, _SUFFIXES)}"
        )
    layout = find_data(str(source), requested.columns, requested.follow_links)
    if layout.raw and requested.to in (*_IN_FILE_NAMES, "recordio"):
        raise SpecError(f"{source}: the field {layout.raw[0]!r} holds arrays whose shape and type are fields of their "
                        f"own, which {requested.to} would tear apart; convert to tfrecord, lmdb or parquet, or write a "
                        "spec")  # fmt: skip
    names = {f: _plain(f) if requested.to in _IN_FILE_NAMES else _allowed(f) for f in layout.fields}
    _check_distinct(names, requested.to)
    if renamed := [f"{f!r} as {name!r}" for f, name in names.items() if f != name]:
        note(f"names in {requested.to} have letters, digits and a few signs only: {', '.join(renamed)}")
    variables = {f: f"field{k}" for k, f in enumerate(layout.fields)}
    reader = {**layout.step, "name": "Reader", "out": list(variables.values())}
    if requested.shuffle:
        reader["shuffle"] = "full"
    graph: list[dict[str, Any]] = [reader]
    fields: dict[str, dict[str, Any]] = {}
    picture = _picture(layout) if requested.touches_pictures else None
    for f in layout.fields:
        steps, fields[names[f]] = _field(f, variables[f], layout, requested, is_picture=f == picture)
        graph += steps
    if picture is None and requested.touches_pictures:
        raise SpecError(f"{source} holds no pictures to resize or encode; its fields: {', '.join(layout.fields)}")
    if requested.limit is not None:
        graph[0]["limit"] = requested.limit
    if requested.to == "recordio" and layout.named:
        note("recordio cannot store the samples' keys and the names of fields: samples are numbered")
    shard = {k: v for k, v in (("samples", requested.samples), ("bytes", requested.bytes)) if v is not None}
    return {
        "version": 1,
        "name": requested.name,
        "pipeline": {"seed": requested.seed, "device": "cpu"},
        "graph": graph,
        "outputs": {names[f]: variables[f] for f in layout.fields},
        "write": {"writer": requested.to, "path": _place(target), **({"shard": shard} if shard else {}),
                  "fields": fields, **_writer_options(layout, requested, names)},
        "on_error": {"policy": "skip"},
    }  # fmt: skip


def _field(
    field: str, variable: str, layout: SourceLayout, requested: ConvertOptions, *, is_picture: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the steps that convert a ``field`` of the source, which is read as ``variable``, and its entry in the
    section `write.fields`."""
    graph: list[dict[str, Any]] = []
    kind, step = layout.fields[field], {"in": variable, "out": variable}
    in_files = requested.to in ("webdataset", "files")
    if field in layout.numerals and not in_files:  # in these they are texts again
        graph.append({"op": "number_from_text", **step})
        kind = "numbers"
    if field in layout.arrays:
        graph.append({"op": "decoders.numpy", **step})
        kind = "numbers"
    if field in layout.casts:
        graph.append({"op": "cast", "dtype": _DALI_NAMES.get(layout.casts[field], layout.casts[field].upper()), **step})
    if field in layout.whole:
        graph.append({"op": "cast", "dtype": "INT64", **step})
    if is_picture:
        graph += _pictures(variable, requested)
        return graph, {"extension": _SUFFIXES[requested.target]} if in_files else {}
    if field in layout.lists:
        return graph, {"encode": "npy"} if in_files else {"extension": "npy"}  # also if a list has one number
    if kind != "bytes":
        return graph, {}
    is_text = field in layout.text
    # also if files have no extension: the manifest stores it, so that the field is known to be a text
    extension = layout.extensions.get(field, "") or ("txt" if is_text else "")
    config = {"encode": "text" if is_text and requested.to in _TYPED else "keep"}
    return graph, config | ({"extension": extension} if is_extension(extension) else {})


def _writer_options(layout: SourceLayout, requested: ConvertOptions, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the writer: the requested ones, and those without which keys or lists would be lost."""
    options = dict(requested.options)
    key = layout.key or next(k for k in (*KEYS, "") if k not in names.values())
    if requested.to == "lmdb" and layout.named:
        options.setdefault("key", "sample")
    if requested.to in ("tfrecord", "array_record") and layout.named:
        options.setdefault("key", key)
    if requested.to in _TYPED:
        options.setdefault("lists", [names[f] for f in layout.lists])
        options.setdefault("key", key)
    return options


def convert(
    source: Path | str,
    target: Path | str,
    requested: ConvertOptions,
    *,
    fresh: bool = False,
    append: bool = False,
    device: str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    by: Callable[..., JobResult] = run_job,
) -> JobResult:
    """Convert ``source`` into directory ``target``, or continue a conversion; ``append`` adds records that are new.
    ``device``: where images are resized and encoded. ``note`` is called with each line about fields that get another
    name. ``by``: function that runs the job, `run_job` or one with the same arguments. Raises SpecError and
    JobError."""
    spec = conversion(source, target, requested, note)
    spec["pipeline"]["device"] = device
    amend = _with_kept if requested.touches_pictures else dict
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
    """Return the error ``message`` without its position in the generated spec, which the user does not know."""
    place = rf"^{re.escape(str(path))}:\d+:\d+: (step 1 \([\w.]+\): )?"
    return re.sub(place, "", message, flags=re.MULTILINE)


_SECTIONS = {"version", "name", "pipeline", "graph", "outputs", "write", "on_error"}
_STEPS = {"decoders.image", "decoders.numpy", "resize", "encoders.image", "encoded_as", "number_from_text", "cast"}


def is_conversion(spec: Any) -> bool:
    """Return whether `conversion` could have made ``spec``, which then has no plugins and no functions of users."""

    def known(steps: Any) -> bool:
        return isinstance(steps, list) and all(
            isinstance(s, dict)
            and (known(s.get("then", [])) and known(s.get("else", [])) if "if" in s else
                 str(s.get("op")) in _STEPS or str(s.get("op")).startswith("readers."))
            for s in steps
        )  # fmt: skip

    return isinstance(spec, dict) and spec.keys() <= _SECTIONS and known(spec.get("graph"))


def _with_kept(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversion's report with the count ``kept`` of images whose bytes needed no change."""
    looked_at, recoded = (
        sum(o["samples"] for o in report["operators"] if o["name"] in names) for names in ((TEST,), (RECODED, SMALL))
    )
    samples = {**report["samples"], "kept": max(0, looked_at - recoded)}
    return {**report, "samples": samples}


def _place(target: Path | str) -> str:
    return str(target) if is_url(target) else os.path.abspath(plain_path(str(target)))


def _picture(layout: SourceLayout) -> str | None:
    """Return the name of the field that holds images, or None. It is the only field of bytes or, of several, the first
    one whose content looks like an image."""
    names = [f for f, kind in layout.fields.items() if kind == "bytes" and f not in layout.text]
    if len(names) > 1:
        arguments = {k: v for k, v in layout.step.items() if k != "op"}

        def fields(outputs: list[Any]) -> dict[str, Any]:
            return dict(zip(layout.fields, outputs, strict=True))

        data = read_through("", layout.step["op"], arguments, fields)
        for record in first_records(data.records):
            for name in names:
                if not record.problem and is_picture(record.fields[name].tobytes()):
                    return name
    return names[0] if names else None


def _pictures(name: str, requested: ConvertOptions) -> list[dict[str, Any]]:
    """Return the steps of a spec that decode, resize and encode the images in field ``name``.

    An image keeps its bytes if its size and format are already right, unless a quality is requested. A smaller image is
    not enlarged, unless that is requested."""
    quality = {} if requested.quality is None else {"quality": requested.quality}
    encode = {"op": "encoders.image", "in": name, "format": requested.target, **quality, "out": name}
    steps: list[dict[str, Any]] = [{"op": "decoders.image", "name": RECODED, "in": name, "out": name}, encode]
    size: dict[str, Any] = {}
    if requested.resize is not None:
        steps.insert(1, {"op": "resize", "in": name, "resize_shorter": requested.resize, "out": name})
        size = {"shorter": requested.resize}
        if not requested.enlarge:
            size["or_smaller"] = True
            as_it_is = [{"op": "decoders.image", "name": SMALL, "in": name, "out": name}, encode]
            fits = {"op": "encoded_as", "name": FITS, "in": name, **size, "out": "small"}
            steps = [fits, {"if": "$small", "then": as_it_is, "else": steps}]
    if requested.quality is not None:
        return steps
    test = {"op": "encoded_as", "name": TEST, "in": name, "format": requested.target, **size, "out": "kept"}
    return [test, {"if": "$kept", "then": [], "else": steps}]


def _plain(name: str) -> str:
    """Return ``name`` with the characters replaced that cannot be part of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]|^-", "_", name) or "_"


def _allowed(name: str) -> str:
    """Return ``name`` with the characters replaced that a spec does not accept in names of fields."""
    near = re.sub(r"[^A-Za-z0-9_./-]", "_", name)
    return near if is_field_name(near) else _plain(near)


def _check_apart(source: str, target: str) -> None:
    """Raise SpecError if the output ``target`` would become a part of the data set ``source``."""
    if is_url(source) != is_url(target):
        return
    if is_url(source):
        inside = f"{target.rstrip('/')}/".startswith(f"{source.rstrip('/')}/")
    else:
        inside = Path(plain_path(target)).resolve().is_relative_to(Path(plain_path(source)).resolve())
    if inside:
        raise SpecError(f"{target} is inside {source}: the output would be read the next time; choose a folder outside")
