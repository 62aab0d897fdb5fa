"""A first spec for a data set that was looked at: `dali-run init`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ops.base import nearest
from ...ops.codecs.formats import SUFFIXES
from ...ops.errors import SpecError
from ...ops.storage.urls import is_url, split
from ...writers.formats.columns import is_extension
from ..plugins import known_writer, load_operators
from ..spec.to_yaml import flow
from ..tools.datasets import read_through
from ..tools.remote_sample import skeleton
from ..wording import count
from .convert import _allowed as allowed_name
from .convert import _picture as picture_field
from .convert import _plain as plain_name
from .data_layout import SourceLayout, is_picture, look, write_section

SCHEMA = "spec.schema.json"
_FEW = 8
"""Files behind a URL whose content is looked at."""
_LOOKED_AT = 5000
"""Files whose names are looked at."""
_MEDIA = {
    "pictures": SUFFIXES,
    "sounds": (".wav", ".flac", ".ogg", ".mp3", ".opus"),
    "videos": (".mp4", ".mkv", ".avi", ".mov", ".webm"),
}
TASKS: dict[str, dict[str, str]] = {
    "pictures": {
        "resize": "JPEGs again, with the shorter side of --size pixels",
        "train": "tensors for training: random crops of --size pixels, mirrored at random, normalized",
        "val": "tensors for validation: resized, the centre cut out, normalized",
        "keep": "the same bytes in another container",
        "curate": "the same bytes without small, long and blurred images, with scores, split into train and val",
    },
    "coco": {
        "train": "pictures of --size x --size with boxes (0 to 1) and classes",
        "keep": "the same pictures with boxes (in pixels) and classes",
    },
    "sounds": {"logmel": "log-mel features, 16 kHz, 80 bands", "keep": "the same bytes in another container"},
    "videos": {"clips": "clips of 16 frames, the shorter side of --size pixels", "keep": "the same bytes"},
    "records": {"keep": "the same fields in another container"},
}
"""The tasks that each kind of data can be made into; the first is the default."""
_SIZES = {"resize": 256, "train": 224, "val": 224, "clips": 112}
_MEAN, _STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


@dataclass(slots=True)
class SampleFacts:
    """A data set that was looked at."""

    kind: str
    """One of `TASKS`."""
    about: str
    """In words: ``72 files in 4 folders (.jpg)``."""
    reader: dict[str, Any]
    """The step that reads it, without `out`; ``${data}`` stands for the place."""
    fields: dict[str, str] = field(default_factory=dict)
    """Names of what is read, in their order: ``bytes`` or ``numbers``; empty for what no task wants."""
    media: str = ""
    """Of the fields, the one with the pictures, sounds or videos."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    said: str = ""
    """A comment for the reader."""


@dataclass(slots=True)
class _Made:
    """The graph of a task, as lines with comments, and its outputs."""

    lines: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)

    def step(self, step: Mapping[str, Any], comment: str = "") -> None:
        self.lines += [f"  # {comment}"] * bool(comment)
        self.lines.append(f"  - {flow(dict(step))}")


def tasks_of(seen: SampleFacts, size: int | None = None) -> dict[str, str]:
    """The tasks that a data set can be made into, with the size of pictures put in."""
    return {task: text.replace("--size", str(size_for(seen, task, size))) for task, text in TASKS[seen.kind].items()}


def size_for(seen: SampleFacts, task: str, size: int | None) -> int:
    """Pixels of resized pictures: those that are asked for, or what is usual."""
    return size or (300 if seen.kind == "coco" else _SIZES.get(task, 256))


# -- looking ----------------------------------------------------------------------------------------------------------


def look_at(place: str) -> SampleFacts:
    """The kind of data at ``place``, a path or a URL: files in class folders or one folder, containers, COCO. Behind a
    URL, one container or a few files are looked at. Raises SpecError, JobError."""
    load_operators()
    if not is_url(place):
        return _look_at(Path(place), place)
    with skeleton(place, _FEW) as copy:
        try:
            seen = _look_at(copy.place, place, in_part=True)
        except SpecError as e:
            raise SpecError(str(e).replace(str(copy.place), place)) from None
        if copy.containers:
            seen.about = seen.about.replace("1 file", count(len(copy.containers), "file"), 1)
        if seen.reader.get("dir_filters"):  # one folder of files: it is chosen from the one above
            above, name = split(place.rstrip("/"))
            seen.reader |= {"file_root": above.url, "dir_filters": [name]}
        return seen


def _look_at(folder: Path, place: str, *, in_part: bool = False) -> SampleFacts:
    if not folder.exists():
        raise SpecError(f"{place}: there is no such file or folder; dali-run sample-data data makes one to try")
    if folder.is_dir():
        if (coco := _coco(folder)) is not None:
            return coco
        with os.scandir(folder) as entries:
            containers = any(_is_container(e.name) and (e.is_file() or e.name.endswith(".lmdb")) for e in entries)
        if not containers and not (folder / "data.mdb").exists() and write_section(folder) is None:
            return _files(folder)
    return _records(folder, in_part)


_CONTAINERS = re.compile(r".*\.(tfrecords?(\.gz)?|tar(\.gz)?|tgz|rec|parquet|lmdb|mdb)")


def _is_container(name: str) -> bool:
    return bool(_CONTAINERS.fullmatch(name))


def _coco(folder: Path) -> SampleFacts | None:
    for path in sorted([*folder.glob("*.json"), *folder.glob("annotations/*.json")]):
        with path.open("rb") as f:
            head = f.read(1 << 16)
        if not head.lstrip().startswith(b"{") or b'"images"' not in head + _tail(path) or path.stat().st_size > 1 << 30:
            continue
        found = json.loads(path.read_bytes())
        if not {"images", "annotations", "categories"} <= set(found) or not found["images"]:
            continue
        name = str(found["images"][0]["file_name"])
        root = next(
            (p for p in [folder, *sorted(x for x in folder.iterdir() if x.is_dir())] if (p / name).exists()), None
        )
        if root is None:
            raise SpecError(f"{path} is COCO's, but no folder in {folder} holds its first picture, {name}")
        below = "" if root == folder else f"/{root.name}"
        about = (f"{count(len(found['images']), 'picture')} with {len(found['annotations']):,} boxes of "
                 f"{len(found['categories']):,} classes, annotated as COCO")  # fmt: skip
        step = {"op": "readers.coco", "name": "Reader", "file_root": f"${{data}}{below}",
                "annotations_file": f"${{data}}/{path.relative_to(folder)}"}  # fmt: skip
        return SampleFacts("coco", about, step, {"image": "bytes", "boxes": "numbers", "labels": "numbers"}, "image")
    return None


def _tail(path: Path) -> bytes:
    with path.open("rb") as f:
        f.seek(max(0, path.stat().st_size - (1 << 16)))
        return f.read()


def _files(folder: Path) -> SampleFacts:
    suffixes: Counter[str] = Counter()
    folders: set[str] = set()
    for root, inner, names in os.walk(folder):
        inner[:] = sorted(n for n in inner if not n.startswith("."))
        shown = [name for name in names if not name.startswith(".")]
        suffixes.update(os.path.splitext(name)[1].lower() for name in shown)
        folders.update([os.path.relpath(root, folder).split(os.sep)[0]] if shown else [])
        if suffixes.total() > _LOOKED_AT:
            break
    if not suffixes:
        raise SpecError(f"{folder} holds no files")
    kinds = {kind: sum(suffixes[s] for s in known) for kind, known in _MEDIA.items()}
    kind = max(kinds, key=lambda k: kinds[k])
    if not kinds[kind]:
        if suffixes[".npy"]:
            arrays: dict[str, Any] = {"op": "readers.numpy", "name": "Reader", "file_root": "${data}"}
            return SampleFacts("records", _about(suffixes, folders), arrays, {"array": "numbers"})
        found = ", ".join(s or "no suffix" for s, _ in suffixes.most_common(4))
        raise SpecError(f"{folder} holds nothing that is known here (names end in {found}): pictures, sounds, videos, "
                        ".npy, .tfrecord, .tar, .rec, .lmdb, .parquet, COCO's .json are")  # fmt: skip
    media = {"pictures": "image", "sounds": "audio", "videos": "video"}[kind]
    patterns = [f"*{s}" for s in _MEDIA[kind] if suffixes[s]]
    step: dict[str, Any] = {"op": "readers.file", "name": "Reader", "file_root": "${data}", "file_filters": patterns}
    fields = {media: "bytes", "label": "numbers"}
    said = "a sample for each file: its bytes, and the number of its folder (sorted by name)"
    if folders == {"."}:
        # readers.file reads folders of a folder: this one is chosen from the one above
        step |= {"file_root": "${data}/..", "dir_filters": [folder.resolve().name]}
        fields, said = {media: "bytes", "": "numbers"}, "a sample for each file of this one folder"
    return SampleFacts(kind, _about(suffixes, folders), step, fields, media, said=said)


def _about(suffixes: Counter[str], folders: set[str]) -> str:
    more = "more than " if suffixes.total() > _LOOKED_AT else ""
    classes = "" if folders == {"."} else f" in {count(len(folders - {'.'}), 'folder')}"
    kinds = ", ".join(s or "no suffix" for s, _ in suffixes.most_common(3))
    return f"{more}{count(suffixes.total(), 'file')}{classes} ({kinds})"


def _records(place: Path, in_part: bool) -> SampleFacts:
    found = look(place, in_part=in_part)
    step = {"op": found.step["op"], "name": "Reader", **{k: v for k, v in found.step.items() if k != "op"}}
    name = "paths" if "paths" in step else "path"
    paths = step.get(name)
    if isinstance(paths, (list, tuple)):
        step[name] = _pattern(place, [str(p) for p in paths])
    picture = picture_field(found) if "bytes" in found.fields.values() else None
    files = count(len(paths), "file") if isinstance(paths, (list, tuple)) else "files"
    about = f"{files} of {step['op'].removeprefix('readers.')} with the fields {', '.join(found.fields)}"
    kind = "pictures" if picture is not None and _is_picture(found, picture) else "records"
    return SampleFacts(kind, about, step, dict(found.fields), picture or "", found.extensions)


def _is_picture(found: SourceLayout, name: str) -> bool:
    """The first records' field ``name`` holds pictures."""
    arguments = {k: v for k, v in found.step.items() if k != "op"}
    data = read_through("", found.step["op"], arguments, lambda outputs: dict(zip(found.fields, outputs, strict=True)))
    first = next((r for r in data.records if not r.problem), None)
    return first is not None and is_picture(first.fields[name].tobytes())


def _pattern(place: Path, paths: Sequence[str]) -> Any:
    """The files as one pattern below ``${data}``, where that says the same."""
    if not place.is_dir():
        return "${data}"
    suffixes = {"".join(Path(p).suffixes[-2:] if p.endswith(".gz") else [Path(p).suffix]) for p in paths}
    if len(suffixes) == 1 and ".jsonl" not in suffixes and all(Path(p).parent == place for p in paths):
        (suffix,) = suffixes
        return f"${{data}}/*{suffix}" if suffix else [f"${{data}}/{Path(p).name}" for p in paths]
    return [
        p if not Path(p).is_relative_to(place) else f"${{data}}/{Path(p).relative_to(place)}".rstrip("/.")
        for p in paths
    ]


# -- writing ----------------------------------------------------------------------------------------------------------


def spec_text(
    place: str, seen: SampleFacts, task: str = "", *, writer: str = "", out: str = "", size: int | None = None,
    schema: bool = True,
) -> str:  # fmt: skip
    """A commented spec that does ``task`` (of `TASKS`) to the data at ``place``. Raises SpecError for a task or a
    writer that does not fit."""
    tasks = TASKS[seen.kind]
    task = task or next(iter(tasks))
    if task not in tasks:
        raise SpecError(f"--task must be {' or '.join(tasks)} for {seen.kind}, got {task!r}{nearest(task, tasks)}")
    writer = writer or ("numpy" if seen.kind == "pictures" and task in ("train", "val") else "webdataset")
    known_writer(writer)
    out = out or f"./out/{Path(place).resolve().name}-{task}"
    title = tasks_of(seen, size)[task]
    made = _graph(seen, task, writer, size_for(seen, task, size))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(out).name).lstrip("._-") or "job"
    shard = {"samples": 10_000 if task in ("keep", "resize", "logmel") else 1000}
    write = (
        [] if writer in ("lmdb", "files") else [f"  shard: {flow(shard)} # samples in each file; or {{bytes: 1GiB}}"]
    )
    return "\n".join([
        *[f"# yaml-language-server: $schema=./{SCHEMA}"] * schema,
        f"# {title[:1].upper()}{title[1:]}.",
        f"# Data: {seen.about}. Written by dali-run init; everything in it may be changed.",
        "#",
        "#   dali-run validate SPEC             is it right?",
        "#   dali-run inspect SPEC -n 4         every step of four samples, as pictures",
        "#   dali-run run SPEC --limit 100      a first look; then without --limit",
        "version: 1",
        f"name: {flow(name)} # what the shards are called",
        "vars:",
        f"  data: {flow(place)} # another place: --set data=...",
        f"  out: {flow(out)}",
        "pipeline:",
        "  batch_size: 64 # dali-run tune SPEC measures what is fastest here",
        "  device: auto # a GPU if there is one, else the CPU; results are the same within each operator's bound",
        "  seed: 42 # the same seed gives the same output",
        "graph:",
        *made.lines,
        f"outputs: {flow(made.outputs)}",
        "write:",
        f"  writer: {writer} # others: dali-run ops lists writers.*",
        '  path: "${out}"',
        *write,
        "  fields: # how each output is stored; keep: the bytes that were read",
        *[f"    {flow(n)}: {flow(config)}" for n, config in made.fields.items()],
        "on_error:",
        "  policy: skip # bad samples are left out and listed in rejects.jsonl",
        "  max_errors: 5% # more of them fail the job",
        "",
    ])  # fmt: skip


def _graph(seen: SampleFacts, task: str, writer: str, size: int) -> _Made:
    made = _Made()
    named = allowed_name if writer not in ("webdataset", "files", "numpy") else plain_name
    whole = writer == "numpy" and task != "keep"  # arrays of one shape: no room for texts and other bytes
    wanted = [f for f, kind in seen.fields.items() if f and not (whole and kind == "bytes" and f != seen.media)]
    batches = {f: f if f.isidentifier() else f"field{k}" for k, f in enumerate(wanted)}
    for f, batch in batches.items():
        made.outputs[named(f)] = batch
        made.fields[named(f)] = _stored(seen, f, writer)
    outs = [batches.get(f, "_") for f in seen.fields]
    reader = dict(seen.reader)
    if seen.kind == "coco" and task == "train":
        reader |= {"ratio": True, "ltrb": True}
    if seen.kind == "videos" and task == "clips":
        reader = {"op": "experimental.readers.video", "name": "Reader", "file_root": reader["file_root"],
                  "sequence_length": 16, "stride": 2, "step": 32}  # fmt: skip
        outs = outs if len(outs) == 1 or outs[1] != "_" else [outs[0], "_"]
    if task == "train":
        reader["shuffle"] = "full"
    if task == "curate":
        reader["split"] = {"train": 0.9, "val": 0.1, "by": "key", "seed": 42}
    made.step({**reader, "out": outs[0] if len(outs) == 1 else outs}, seen.said or "what is read, sample by sample")
    if task == "curate":
        _curate(made, batches[seen.media])
    elif seen.media and task != "keep":
        media = batches[seen.media]
        made.fields[named(seen.media)] = _MAKERS[seen.kind, task](made, media, size, writer)
    return made


def _stored(seen: SampleFacts, f: str, writer: str) -> dict[str, Any]:
    if seen.fields[f] != "bytes":
        return {"encode": "npy"} if seen.kind == "coco" and writer in ("webdataset", "files") else {}
    extension = seen.extensions.get(f, "") or _own_extension(seen, f)
    return {
        "encode": "keep",
        **({"extension": extension} if is_extension(extension) and writer in ("webdataset", "files") else {}),
    }


def _own_extension(seen: SampleFacts, f: str) -> str:
    """Of files that all have one suffix."""
    patterns = seen.reader.get("file_filters", ())
    return patterns[0].removeprefix("*.") if f == seen.media and len(patterns) == 1 else ""


def _array(writer: str) -> dict[str, Any]:
    return {"encode": "npy"} if writer in ("webdataset", "files") else {} if writer == "numpy" else {"encode": "raw"}


def _resized(made: _Made, media: str, size: int, _writer: str) -> dict[str, Any]:
    made.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": media})
    made.step(
        {"op": "resize", "in": media, "resize_shorter": size, "out": media}, "the shorter side; the other follows"
    )
    return {"encode": "jpeg", "quality": 90}


def _normalized(made: _Made, media: str, **more: Any) -> None:
    made.step({"op": "crop_mirror_normalize", "in": media, "mean": _MEAN, "std": _STD, "dtype": "FLOAT16",
               "output_layout": "CHW", **more, "out": media}, "ImageNet's mean and deviation, of 0 to 255")  # fmt: skip


def _train(made: _Made, media: str, size: int, writer: str) -> dict[str, Any]:
    made.step({"op": "decoders.image_random_crop", "in": media, "output_type": "RGB", "random_area": [0.08, 1.0],
               "out": media}, "only a random window is decoded")  # fmt: skip
    made.step({"op": "resize", "in": media, "size": [size, size], "out": media})
    made.step({"op": "random.coin_flip", "out": "mirror"})
    _normalized(made, media, mirror="$mirror")
    return _array(writer)


def _val(made: _Made, media: str, size: int, writer: str) -> dict[str, Any]:
    made.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": media})
    made.step({"op": "resize", "in": media, "resize_shorter": size * 8 // 7, "out": media})
    _normalized(made, media, crop=[size, size])
    return _array(writer)


def _curate(made: _Made, media: str) -> None:
    """Leave samples out by size, shape and sharpness, and write scores with the others."""
    made.step({"op": "peek_image_shape", "in": media, "out": "shape"}, "height and width, from the header")
    made.step({"op": "keep_if", "name": "Size", "if": "min(shape[0], shape[1]) >= 64"},
              "what is left out here is listed in left_out.jsonl; nothing of it is decoded")  # fmt: skip
    longest = "max(shape[0], shape[1]) <= 3 * min(shape[0], shape[1])"
    made.step({"op": "keep_if", "name": "Aspect", "if": longest}, "no strips and banners")
    made.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": "pixels"})
    made.step({"op": "image_scores", "in": "pixels", "scores": ["phash", "sharpness", "entropy"],
               "out": ["phash", "sharpness", "entropy"]}, "dali-run dedupe finds near duplicates by phash")  # fmt: skip
    made.step({"op": "keep_if", "name": "Sharp", "if": "sharpness > 10 and entropy > 1"},
              "no blurred and blank images; look at the scores of your data before you set the limits")  # fmt: skip
    for score in ("phash", "sharpness", "entropy"):
        made.outputs[score], made.fields[score] = score, {}


def _boxes(made: _Made, media: str, size: int, _writer: str) -> dict[str, Any]:
    made.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": media})
    made.step(
        {"op": "resize", "in": media, "size": [size, size], "out": media}, "boxes are shares of the picture: they hold"
    )
    return {"encode": "jpeg", "quality": 95}


def _logmel(made: _Made, media: str, _size: int, writer: str) -> dict[str, Any]:
    made.step({"op": "decoders.audio", "in": media, "sample_rate": 16000, "downmix": True, "out": [media, "_"]},
              "one channel at 16 kHz, whatever the file has")  # fmt: skip
    made.step({"op": "spectrogram", "in": media, "nfft": 512, "window_length": 400, "window_step": 160, "out": media},
              "windows of 25 ms every 10 ms")  # fmt: skip
    made.step({"op": "mel_filter_bank", "in": media, "sample_rate": 16000, "nfilter": 80, "out": media})
    made.step({"op": "to_decibels", "in": media, "multiplier": 10.0, "cutoff_db": -80.0, "out": media})
    return {"encode": "npy"} if writer in ("webdataset", "files") else {"encode": "raw"}


def _clips(made: _Made, media: str, size: int, writer: str) -> dict[str, Any]:
    made.step({"op": "resize", "in": media, "resize_shorter": size, "out": media})
    made.step({"op": "crop", "in": media, "crop": [size, size], "out": media}, "the centre of all frames")
    return _array(writer)


_MAKERS = {
    ("pictures", "resize"): _resized, ("pictures", "train"): _train, ("pictures", "val"): _val,
    ("coco", "train"): _boxes, ("sounds", "logmel"): _logmel, ("videos", "clips"): _clips,
}  # fmt: skip
