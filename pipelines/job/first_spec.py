"""Write a first spec for a data set, after examining its files: `dali-run init`."""

from __future__ import annotations

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
from ...readers.coco import load_annotations
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
_MAX_REMOTE_FILES = 8
"""Maximum number of files behind a URL whose content is examined."""
_MAX_NAMES = 5000
"""Maximum number of files whose names are examined."""
_MAX_DEPTH = 6
"""Maximum depth of folders that are searched for files."""
_MEDIA = {
    "pictures": SUFFIXES,
    "sounds": (".wav", ".flac", ".ogg", ".mp3", ".opus"),
    "videos": (".mp4", ".mkv", ".avi", ".mov", ".webm"),
}
TASKS: dict[str, dict[str, str]] = {
    "pictures": {
        "resize": "JPEGs resized to a shorter side of --size pixels",
        "train": "tensors for training: random crops of --size pixels, mirrored at random, normalized",
        "val": "tensors for validation: resized, centre crop, normalized",
        "keep": "the same bytes in another container",
        "curate": "the same bytes without small, long and blurred images, with scores, split into train and val",
    },
    "coco": {
        "train": "images of --size x --size with boxes (0 to 1) and classes",
        "keep": "the same images with boxes (in pixels) and classes",
    },
    "sounds": {"logmel": "log-mel features, 16 kHz, 80 bands", "keep": "the same bytes in another container"},
    "videos": {"clips": "clips of 16 frames, the shorter side of --size pixels", "keep": "the same bytes"},
    "records": {"keep": "the same fields in another container"},
}
"""Tasks for which `init` can write a spec, by kind of data: name and description; the default is first."""
_SIZES = {"resize": 256, "train": 224, "val": 224, "clips": 112}
_MEAN, _STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


@dataclass(slots=True)
class SampleFacts:
    """Facts about a data set that was examined. Created by `look_at`."""

    kind: str
    """Kind of data, a key of `TASKS`."""
    about: str
    """Description of the data set for users, such as ``72 files in 4 folders (.jpg)``."""
    reader: dict[str, Any]
    """The reader's step of the generated spec, without `out`; ``${data}`` stands for the path of the data."""
    fields: dict[str, str] = field(default_factory=dict)
    """Outputs of the reader in order: their names, and whether they are ``bytes`` or ``numbers``. The name is empty if
    no task uses the output."""
    media: str = ""
    """Name of the field with the images, audio clips or videos; empty if there is none."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    reader_comment: str = ""
    """Comment for the reader's step in the generated spec; empty for none."""


@dataclass(slots=True)
class _GraphText:
    """The generated `graph:` section of a spec, as YAML lines with comments, and the names of its outputs. Created by
    `_graph`."""

    lines: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)

    def step(self, step: Mapping[str, Any], comment: str = "") -> None:
        self.lines += [f"  # {comment}"] * bool(comment)
        self.lines.append(f"  - {flow(dict(step))}")


def tasks_of(seen: SampleFacts, size: int | None = None) -> dict[str, str]:
    """Return the descriptions of the tasks that a data set allows, by name, with the size of resized images filled
    in."""
    return {task: text.replace("--size", str(size_for(seen, task, size))) for task, text in TASKS[seen.kind].items()}


def size_for(seen: SampleFacts, task: str, size: int | None) -> int:
    """Return the size in pixels to which images are resized: ``size`` if it is set, otherwise the default of the
    task."""
    return size or (300 if seen.kind == "coco" else _SIZES.get(task, 256))


# -- looking ----------------------------------------------------------------------------------------------------------


def look_at(place: str) -> SampleFacts:
    """Find out the kind of data at ``place``, a path or a URL: files in class folders or in one folder, containers, or
    COCO. Behind a URL, only one container or a few files are examined. Raises SpecError and JobError."""
    load_operators()
    if not is_url(place):
        return _look_at(Path(place), place)
    with skeleton(place, _MAX_REMOTE_FILES) as copy:
        try:
            seen = _look_at(copy.place, place, in_part=True)
        except SpecError as e:
            raise SpecError(str(e).replace(str(copy.place), place)) from None
        if copy.containers:
            seen.about = seen.about.replace("1 file", count(len(copy.containers), "file"), 1)
        if seen.reader.get("dir_filters"):  # one folder of files is selected from its parent folder
            above, name = split(place.rstrip("/"))
            seen.reader |= {"file_root": above.url, "dir_filters": [name]}
        return seen


def _look_at(folder: Path, place: str, *, in_part: bool = False) -> SampleFacts:
    if not folder.exists():
        raise SpecError(f"{place}: there is no such file or folder; `dali-run sample-data data` writes one to try")
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
        annotations = load_annotations(str(path))
        if any(not isinstance(annotations.get(k), list) for k in ("images", "annotations", "categories")):
            continue
        first = annotations["images"][0] if annotations["images"] else None
        if not isinstance(first, dict) or not isinstance(first.get("file_name"), str) or "\0" in first["file_name"]:
            continue
        name = first["file_name"]
        root = next(
            (p for p in [folder, *sorted(x for x in folder.iterdir() if x.is_dir())] if (p / name).exists()), None
        )
        if root is None:
            raise SpecError(f"{path} is a COCO file, but no folder in {folder} holds its first image, {name}")
        below = "" if root == folder else f"/{root.name}"
        about = (f"{count(len(annotations['images']), 'image')} with {len(annotations['annotations']):,} boxes of "
                 f"{len(annotations['categories']):,} classes, annotated as COCO")  # fmt: skip
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
    holders: dict[str, Counter[str]] = {}  # for each suffix the folders that hold such files, relative to `folder`
    for root, inner, names in os.walk(folder, followlinks=True):
        place = os.path.relpath(root, folder)
        inner[:] = sorted(n for n in inner if not n.startswith(".")) if place.count(os.sep) < _MAX_DEPTH else []
        visible = Counter(os.path.splitext(name)[1].lower() for name in names if not name.startswith("."))
        suffixes.update(visible)
        for suffix, found in visible.items():
            holders.setdefault(suffix, Counter())[place] += found
        if suffixes.total() > _MAX_NAMES:
            break
    if not suffixes:
        raise SpecError(f"{folder} holds no files")
    kinds = {kind: sum(suffixes[s] for s in known) for kind, known in _MEDIA.items()}
    kind = max(kinds, key=lambda k: kinds[k])
    if not kinds[kind]:
        if suffixes[".npy"]:
            _, about = _readable(folder, suffixes, holders, (".npy",))
            arrays: dict[str, Any] = {"op": "readers.numpy", "name": "Reader", "file_root": "${data}"}
            return SampleFacts("records", about, arrays, {"array": "numbers"})
        endings = ", ".join(s or "no suffix" for s, _ in suffixes.most_common(4))
        raise SpecError(f"{folder} holds no known kind of data (names end in {endings}). Known are images, audio, "
                        "videos, .npy, .tfrecord, .tar, .rec, .lmdb, .parquet, COCO's .json")  # fmt: skip
    media = {"pictures": "image", "sounds": "audio", "videos": "video"}[kind]
    patterns = [f"*{s}" for s in _MEDIA[kind] if suffixes[s]]
    step: dict[str, Any] = {"op": "readers.file", "name": "Reader", "file_root": "${data}", "file_filters": patterns}
    fields = {media: "bytes", "label": "numbers"}
    comment = "a sample for each file: its bytes, and the number of its folder (sorted by name)"
    flat, about = _readable(folder, suffixes, holders, _MEDIA[kind])
    if flat:
        # readers.file reads folders of a folder: this one is selected from its parent
        step |= {"file_root": "${data}/..", "dir_filters": [folder.resolve().name]}
        fields, comment = {media: "bytes", "": "numbers"}, "a sample for each file of this one folder"
    return SampleFacts(kind, about, step, fields, media, reader_comment=comment)


def _readable(
    folder: Path, suffixes: Counter[str], holders: Mapping[str, Counter[str]], known: Sequence[str]
) -> tuple[bool, str]:
    """Return a pair: whether the data set's files (with the suffixes ``known``) are in ``folder`` itself, not in
    folders inside; and a description of the data set. Raises SpecError if all files are in folders of folders."""
    places: Counter[str] = sum((holders[s] for s in known if s in holders), Counter())
    total, top = places.total(), places.pop(os.curdir, 0)
    classes = sum(n for place, n in places.items() if os.sep not in place)
    if not top and not classes:
        above: Counter[str] = Counter()
        for place, n in places.items():
            above[os.path.dirname(place)] += n
        meant = " or ".join(str(folder / place) for place, _ in above.most_common(5))
        endings = " and ".join(s for s in known if suffixes[s])
        raise SpecError(f"{folder} has its {endings} files in folders of folders, but a reader reads "
                        f"DATA/<folder>/<file>. Name {meant}, or list the files in a text file "
                        "(readers.file: file_list)")  # fmt: skip
    folders = {place.split(os.sep)[0] for counts in holders.values() for place in counts} - {os.curdir}
    more = "more than " if suffixes.total() > _MAX_NAMES else ""
    where = f" in {count(len(folders), 'folder')}" if folders else ""
    kinds = ", ".join(s or "no suffix" for s, _ in suffixes.most_common(3))
    unread = total - (top + classes if ".npy" in known else classes or top)
    left = f"; {unread:,} that are not in {'DATA/<folder>' if classes else 'DATA'} are not read" if unread else ""
    return not classes, f"{more}{count(suffixes.total(), 'file')}{where} ({kinds}){left}"


def _records(place: Path, in_part: bool) -> SampleFacts:
    layout = look(place, in_part=in_part)
    step = {"op": layout.step["op"], "name": "Reader", **{k: v for k, v in layout.step.items() if k != "op"}}
    name = "paths" if "paths" in step else "path"
    paths = step.get(name)
    if isinstance(paths, (list, tuple)):
        step[name] = _pattern(place, [str(p) for p in paths])
    picture = picture_field(layout) if "bytes" in layout.fields.values() else None
    files = count(len(paths), "file") if isinstance(paths, (list, tuple)) else "files"
    about = f"{files} of {step['op'].removeprefix('readers.')} with the fields {', '.join(layout.fields)}"
    kind = "pictures" if picture is not None and _is_image(layout, picture) else "records"
    return SampleFacts(kind, about, step, dict(layout.fields), picture or "", layout.extensions)


def _is_image(layout: SourceLayout, name: str) -> bool:
    """Return whether the field ``name`` holds images, judged by the first records."""
    arguments = {k: v for k, v in layout.step.items() if k != "op"}
    data = read_through(
        "", layout.step["op"], arguments, lambda outputs: dict(zip(layout.fields, outputs, strict=True))
    )
    first = next((r for r in data.records if not r.problem), None)
    return first is not None and is_picture(first.fields[name].tobytes())


def _pattern(place: Path, paths: Sequence[str]) -> Any:
    """Return the files ``paths`` as one glob pattern below ``${data}``, if there is one that matches exactly these
    files; otherwise as a list."""
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
    """Return the text of a commented spec that performs ``task`` (of `TASKS`) on the data at ``place``. Raises
    SpecError if the task or the writer does not suit the data."""
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
        "#   dali-run validate SPEC             check it",
        "#   dali-run inspect SPEC -n 4         see every step of four samples",
        "#   dali-run run SPEC --limit 100      try it; then: dali-run run SPEC --fresh",
        "version: 1",
        f"name: {flow(name)} # beginning of the shards' names",
        "vars:",
        f"  data: {flow(place)} # another path: --set data=...",
        f"  out: {flow(out)}",
        "pipeline:",
        "  batch_size: 64 # `dali-run tune SPEC` measures the fastest value here",
        "  device: auto # a GPU if there is one, else the CPU; results are the same within each operator's bound",
        "  seed: 42 # the same seed gives the same output",
        "graph:",
        *made.lines,
        f"outputs: {flow(made.outputs)}",
        "write:",
        f"  writer: {writer} # `dali-run ops` lists the others: writers.*",
        '  path: "${out}"',
        *write,
        "  fields: # how each output is stored; keep: the bytes as they were read",
        *[f"    {flow(n)}: {flow(config)}" for n, config in made.fields.items()],
        "on_error:",
        "  policy: skip # samples that fail are left out and listed in rejects.jsonl",
        "  max_errors: 5% # more of them fail the job",
        "",
    ])  # fmt: skip


def _graph(seen: SampleFacts, task: str, writer: str, size: int) -> _GraphText:
    made = _GraphText()
    named = allowed_name if writer not in ("webdataset", "files", "numpy") else plain_name
    only_arrays = (
        writer == "numpy" and task != "keep"
    )  # numpy stores arrays of one shape, and cannot store texts and other bytes
    selected = [f for f, kind in seen.fields.items() if f and not (only_arrays and kind == "bytes" and f != seen.media)]
    batches = {f: f if f.isidentifier() else f"field{k}" for k, f in enumerate(selected)}
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
    made.step(
        {**reader, "out": outs[0] if len(outs) == 1 else outs}, seen.reader_comment or "the fields of each sample"
    )
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
    """Return the file extension of the media files, if they all have the same one."""
    patterns = seen.reader.get("file_filters", ())
    return patterns[0].removeprefix("*.") if f == seen.media and len(patterns) == 1 else ""


def _array(writer: str) -> dict[str, Any]:
    return {"encode": "npy"} if writer in ("webdataset", "files") else {} if writer == "numpy" else {"encode": "raw"}


def _resized(text: _GraphText, media: str, size: int, _writer: str) -> dict[str, Any]:
    text.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": media})
    text.step(
        {"op": "resize", "in": media, "resize_shorter": size, "out": media},
        "the shorter side; the other one in proportion",
    )
    return {"encode": "jpeg", "quality": 90}


def _normalized(text: _GraphText, media: str, **more: Any) -> None:
    text.step({"op": "crop_mirror_normalize", "in": media, "mean": _MEAN, "std": _STD, "dtype": "FLOAT16",
               "output_layout": "CHW", **more, "out": media},
              "ImageNet's mean and standard deviation, for values of 0 to 255")  # fmt: skip


def _train(text: _GraphText, media: str, size: int, writer: str) -> dict[str, Any]:
    text.step({"op": "decoders.image_random_crop", "in": media, "output_type": "RGB", "random_area": [0.08, 1.0],
               "out": media}, "only a random window is decoded")  # fmt: skip
    text.step({"op": "resize", "in": media, "size": [size, size], "out": media})
    text.step({"op": "random.coin_flip", "out": "mirror"})
    _normalized(text, media, mirror="$mirror")
    return _array(writer)


def _val(text: _GraphText, media: str, size: int, writer: str) -> dict[str, Any]:
    text.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": media})
    text.step({"op": "resize", "in": media, "resize_shorter": size * 8 // 7, "out": media})
    _normalized(text, media, crop=[size, size])
    return _array(writer)


def _curate(made: _GraphText, media: str) -> None:
    """Add steps to the spec that leave out samples by size, shape and sharpness, and that write these scores for the
    others."""
    made.step({"op": "peek_image_shape", "in": media, "out": "shape"}, "height and width, from the header")
    made.step({"op": "keep_if", "name": "Size", "if": "min(shape[0], shape[1]) >= 64"},
              "samples that are left out here are listed in left_out.jsonl, and not decoded")  # fmt: skip
    longest = "max(shape[0], shape[1]) <= 3 * min(shape[0], shape[1])"
    made.step({"op": "keep_if", "name": "Aspect", "if": longest}, "no strips and banners")
    made.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": "pixels"})
    made.step({"op": "image_scores", "in": "pixels", "scores": ["phash", "sharpness", "entropy"],
               "out": ["phash", "sharpness", "entropy"]}, "dali-run dedupe finds near duplicates by phash")  # fmt: skip
    made.step({"op": "keep_if", "name": "Sharp", "if": "sharpness > 10 and entropy > 1"},
              "no blurred and blank images; look at the scores of your data before you set the limits")  # fmt: skip
    for score in ("phash", "sharpness", "entropy"):
        made.outputs[score], made.fields[score] = score, {}


def _boxes(text: _GraphText, media: str, size: int, _writer: str) -> dict[str, Any]:
    text.step({"op": "decoders.image", "in": media, "output_type": "RGB", "out": media})
    text.step(
        {"op": "resize", "in": media, "size": [size, size], "out": media},
        "boxes are fractions of the image, so they stay valid",
    )
    return {"encode": "jpeg", "quality": 95}


def _logmel(text: _GraphText, media: str, _size: int, writer: str) -> dict[str, Any]:
    text.step({"op": "decoders.audio", "in": media, "sample_rate": 16000, "downmix": True, "out": [media, "_"]},
              "converted to one channel at 16 kHz")  # fmt: skip
    text.step({"op": "spectrogram", "in": media, "nfft": 512, "window_length": 400, "window_step": 160, "out": media},
              "windows of 25 ms every 10 ms")  # fmt: skip
    text.step({"op": "mel_filter_bank", "in": media, "sample_rate": 16000, "nfilter": 80, "out": media})
    text.step({"op": "to_decibels", "in": media, "multiplier": 10.0, "cutoff_db": -80.0, "out": media})
    return {"encode": "npy"} if writer in ("webdataset", "files") else {"encode": "raw"}


def _clips(text: _GraphText, media: str, size: int, writer: str) -> dict[str, Any]:
    text.step({"op": "resize", "in": media, "resize_shorter": size, "out": media})
    text.step({"op": "crop", "in": media, "crop": [size, size], "out": media}, "the centre of all frames")
    return _array(writer)


_MAKERS = {
    ("pictures", "resize"): _resized, ("pictures", "train"): _train, ("pictures", "val"): _val,
    ("coco", "train"): _boxes, ("sounds", "logmel"): _logmel, ("videos", "clips"): _clips,
}  # fmt: skip
