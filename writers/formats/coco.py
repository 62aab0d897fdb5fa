"""COCO: images as files, and their boxes, labels and polygons in a JSON file (cocodataset.org, "Data format")."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np

from ...ops.base import Arg, Operator, Spec
from ...ops.batch import Batch
from ...ops.codecs.headers import Rules, read_headers
from ...ops.context import Context
from ...ops.errors import SpecError
from ...ops.storage.json_text import parse_json
from ..base import ENCODED, FieldConfig, Frames, Records, Refused, Shard, ShardFiles
from ..bytes import sidecar
from ..bytes.written import Problem, WrittenShard
from .columns import check_field, is_encoded, numbers_of
from .files import Files, FilesFrames, FilesShard, UsedPaths


class Coco(Files, name="coco", suffix=".json"):
    """Images as files, and one JSON file of COCO's format per shard with images, annotations and categories.

    Takes one field of encoded images, and of each image boxes (n, 4), labels (n,), and polygons (p, 3: box, first
    vertex, vertex after the last) with vertices (v, 2), as `readers.coco` gives them. Other fields (texts, numbers,
    lists) become further keys of the image's entry. All annotations of a shard are in memory until it is complete;
    without ``shard:`` there is one shard.
    """

    default_samples: ClassVar[int | None] = None

    boxes: Annotated[str, Arg("field of the boxes; ignored if there is none of this name")] = "boxes"
    labels: Annotated[str, Arg("field of the labels")] = "labels"
    polygons: Annotated[str, Arg("field of the polygons")] = "polygons"
    vertices: Annotated[str, Arg("field of the polygons' vertices")] = "vertices"
    box_format: Annotated[
        Literal["xywh", "xyxy"], Arg("boxes as left, top, width, height, or left, top, right, bottom")
    ] = "xywh"
    relative: Annotated[bool, Arg("boxes and vertices are fractions of the image's size")] = False
    categories: Annotated[tuple[str, ...], Arg("names of the categories; the label 1 is the first one")] = ()

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        super().check(fields, specs)
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        images = [n for n, c in fields.items() if _is_image(c, specs.get(n, Spec()))]
        if len(images) != 1:
            raise SpecError(f"the coco writer takes one field of encoded images, got {', '.join(images) or 'none'}; "
                            "texts have encode: text")  # fmt: skip
        for one, other in ((self.labels, self.boxes), (self.polygons, self.vertices), (self.polygons, self.boxes)):
            if one in fields and other not in fields:
                raise SpecError(f"field {one!r} needs the field {other!r}")
        reserved = {"id", "file_name", "width", "height"} & set(fields)
        if reserved:
            raise SpecError(f"field {min(reserved)!r} has the name of a key that COCO's images have already")

    def schema(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> dict[str, Any] | None:
        """Return the facts that hold for all shards: ``image``, the name of the field of encoded images."""
        return {"image": next(n for n, c in fields.items() if _is_image(c, specs.get(n, Spec())))}

    def begin(self, root: Any, finished: Sequence[Mapping[str, Any]]) -> UsedPaths:
        taken = UsedPaths()
        for entry in finished:
            for image in parse_json(sidecar.read(sidecar.inside(root, f"{entry['shard']}.json")))["images"]:
                taken.add(image["file_name"].rpartition(".")[0], [image["file_name"]])
        return taken

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        refused: dict[int, Refused] = {}
        if "image" not in carry:  # a job without schema: the first field of bytes
            found = (n for n, b in records.fields.items() if b.dtype == np.uint8 and b.ndim == 1)
            carry["image"] = next((n for n in found if n not in self.objects()), "")
        name = carry["image"]
        for i, (code, message) in _not_images(records.fields[name]).items() if name else ():
            refused.setdefault(i, Refused(i, code, f"field {name!r}: {message}"))
        for field, width in ((self.boxes, 4), (self.polygons, 3), (self.vertices, 2), (self.labels, 1)):
            for i, message in _not_rows(records.fields.get(field), width):
                refused.setdefault(i, Refused(i, "bad_shape", f"field {field!r}: {message}"))
        if self.boxes in records.fields and self.labels in records.fields:
            counts = [_rows(records.fields[n], w) for n, w in ((self.boxes, 4), (self.labels, 1))]
            for i in np.flatnonzero(counts[0] != counts[1]).tolist():
                message = f"{int(counts[0][i])} boxes and {int(counts[1][i])} labels"
                refused.setdefault(i, Refused(i, "bad_shape", message))
        return [refused[i] for i in sorted(refused)]

    def objects(self) -> set[str]:
        """Names of the fields that become annotations in the JSON file, such as boxes and labels."""
        return {self.boxes, self.labels, self.polygons, self.vertices}

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return CocoShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        name = shard.file(f"{shard.entry['shard']}.json")
        told = parse_json(sidecar.read(shard.root / name))
        yield from shard.count(name, len(told["images"]))
        listed, ids = {f["name"] for f in shard.entry["files"]}, {image["id"] for image in told["images"]}
        for image in told["images"]:
            if image["file_name"] not in listed:
                yield Problem(name, f"image {image['id']}", f"names {image['file_name']}, which was not written")
        categories = {c["id"] for c in told["categories"]}
        for one in told["annotations"]:
            if one["image_id"] not in ids or one["category_id"] not in categories:
                yield Problem(name, f"annotation {one['id']}", "is of an image or a category that is not there")


def _is_image(config: FieldConfig, spec: Spec) -> bool:
    return config.encode != "text" and (config.encode in ENCODED or is_encoded(spec))


def _not_rows(batch: Batch | None, width: int) -> Iterator[tuple[int, str]]:
    """Find the samples that are not arrays of rows with ``width`` finite numbers each. Yield the index of each, with
    the reason."""
    if batch is None:
        return
    for i in np.flatnonzero(batch.sizes % width).tolist():
        yield i, f"{int(batch.sizes[i])} numbers are not rows of {width}"
    if batch.dtype.kind == "f":
        for i in range(len(batch)):
            if not np.isfinite(batch.sample(i)).all():
                yield i, "holds infinity or NaN, which JSON has not"


def _rows(batch: Batch, width: int) -> Any:
    return batch.sizes // width


def _headers(batch: Batch) -> tuple[Any, Context]:
    ctx = Context(op=cast("Operator", None), stage="cpu", samples=batch.samples)
    return read_headers(ctx, batch, Rules(max_pixels=2**62, adjust_orientation=False)), ctx


def _not_images(batch: Batch) -> dict[int, tuple[Any, str]]:
    """Find the images whose header cannot be read. Return code and reason of each, by its index in the batch."""
    _, ctx = _headers(batch)
    at = {int(slot): i for i, slot in enumerate(batch.samples.slot.tolist())}
    return {at[r.slot]: (r.code, r.message) for r in ctx.rejects}


@dataclass(slots=True)
class CocoFrames(Frames):
    """Contents of a batch's image files, and the images' entries for the JSON file."""

    files: FilesFrames
    images: list[dict[str, Any]]
    annotations: list[list[dict[str, Any]]]


class CocoShard(Shard):
    """The image files of one shard, and the JSON file that lists them."""

    def __init__(self, writer: Coco, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._writer = writer
        self._carry = files.carry
        self._out = files.create(".json")
        self._files = FilesShard(writer, files, fields, listed=False)
        self._images: list[str] = []
        self._annotations: list[str] = []
        self._labels: set[int] = set()

    def frame(self, records: Records) -> CocoFrames:
        image = self._carry["image"]
        files = self._files.frame(Records(records.samples, {image: records.fields[image]}))
        headers, _ = _headers(records.fields[image])
        sizes = [(int(w), int(h)) for h, w in headers.extents.tolist()]
        others = {n: b for n, b in records.fields.items() if n != image and n not in self._writer.objects()}
        images: list[dict[str, Any]] = []
        numbers = numbers_of(records.samples).tolist()
        for i, (line, number, (width, height)) in enumerate(zip(files.lines, numbers, sizes, strict=True)):
            entry = {"id": number + 1, "file_name": line["files"][0], "width": width, "height": height}
            images.append({**entry, **{n: self._other(n, b.sample(i)) for n, b in others.items()}})
        return CocoFrames(files.sizes, files, images, self._objects(records, images))

    def _other(self, name: str, value: Any) -> Any:
        if value.dtype == np.uint8 and value.ndim == 1:
            return value.tobytes().decode("utf-8", "replace")
        return value.item() if value.size == 1 else value.tolist()

    def _objects(self, records: Records, images: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return the list of annotations of each image, still without their ids."""
        writer, found = self._writer, list[list[dict[str, Any]]]()
        fields = {n: records.fields.get(n) for n in (writer.boxes, writer.labels, writer.polygons, writer.vertices)}
        boxes, labels, polygons, vertices = fields.values()
        for i, image in enumerate(images):
            scale = np.array([image["width"], image["height"]] if writer.relative else [1, 1], np.float64)
            ones = (
                [] if boxes is None else _boxes(boxes.sample(i).reshape(-1, 4) * np.tile(scale, 2), writer.box_format)
            )
            classes = [1] * len(ones) if labels is None else labels.sample(i).reshape(-1).tolist()
            entries = [
                {"image_id": image["id"], "category_id": int(c), "bbox": box, "area": box[2] * box[3], "iscrowd": 0,
                 "segmentation": []} for box, c in zip(ones, classes, strict=True)
            ]  # fmt: skip
            if polygons is not None and vertices is not None:
                points = vertices.sample(i).reshape(-1, 2) * scale
                for box, first, last in polygons.sample(i).reshape(-1, 3).tolist():
                    if 0 <= box < len(entries):
                        part = points[first:last]
                        entries[box]["segmentation"].append([round(v, 3) for v in part.reshape(-1).tolist()])
                for entry in entries:
                    if entry["segmentation"]:
                        entry["area"] = sum(_area(np.reshape(s, (-1, 2))) for s in entry["segmentation"])
            found.append(entries)
        return found

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, CocoFrames)
        self._files.append(frames.files, n)
        for image, entries in zip(frames.images[:n], frames.annotations[:n], strict=True):
            self._images.append(json.dumps(image, ensure_ascii=False))
            for entry in entries:
                self._labels.add(entry["category_id"])
                self._annotations.append(json.dumps({"id": len(self._annotations) + 1, **entry}))

    def close(self) -> None:
        names = dict(enumerate(self._writer.categories, 1))
        ids = sorted({*names, *self._labels})
        categories = json.dumps([{"id": k, "name": names.get(k, str(k))} for k in ids], ensure_ascii=False)
        parts = [f'{{"images": [{_listed(self._images)}],\n', f'"annotations": [{_listed(self._annotations)}],\n',
                 f'"categories": {categories}}}\n']  # fmt: skip
        for part in parts:
            self._out.write(part.encode())


def _listed(entries: list[str]) -> str:
    return "\n" + ",\n".join(entries) + "\n" if entries else ""


def _boxes(boxes: Any, box_format: str) -> list[list[float]]:
    """Convert boxes from ``box_format`` to left, top, width and height."""
    if box_format == "xyxy":
        boxes = np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1)
    return [[round(v, 3) for v in box] for box in boxes.tolist()]


def _area(points: Any) -> float:
    """Return the area of the polygon with these corners, in pixels."""
    x, y = points[:, 0], points[:, 1]
    return round(abs(float(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))) / 2, 3)
