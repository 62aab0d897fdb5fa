"""readers.coco: images with boxes, labels and polygons from annotation files (cocodataset.org, "Data format")."""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, TypeGuard

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, BatchedOrigins, Origin
from ..ops.context import Context
from ..ops.errors import JobError, SpecError
from ..ops.storage.inventory import InventoryEntries
from ..ops.storage.json_text import parse_json
from ..ops.types import DALIDataType
from .base import Reader
from .coco_masks import polygon_mask, runs_mask, runs_of
from .fetch.remote import local_copy
from .file import FileSet, scalars

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

_INT32 = 2**31 - 1
_MAX_PIXELS = 1 << 28  # largest mask, in pixels
_MAX_SHARED = 1 << 24
"""Largest number of box and polygon coordinates that all images with one id get together. Each of these images gets all
objects of the id, so that a file of 40 MB could otherwise ask for terabytes."""


@dataclass(slots=True)
class _Objects:
    """Annotations (boxes, labels, masks) of one image id, without the objects that the reader's filters exclude."""

    images: int = 0
    """Number of images that have this id; each of them receives all of the id's objects, as in DALI."""
    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    polygons: list[tuple[int, list[float]]] = field(default_factory=list)
    """Polygons of masks, each as (index in ``boxes`` of its object, [x, y, x, y, ...])."""
    runs: list[tuple[int, list[int]]] = field(default_factory=list)
    """Run-length masks, each as (index in ``boxes`` of its object, run lengths). Runs are alternately outside and
    inside of the object, column by column."""
    problem: str = ""
    """Reason for which the images with this id are rejected; empty if they are valid."""

    @property
    def shared(self) -> int:
        """Number of box and polygon coordinates that all images with this id get together; 0 for a single image."""
        return self.images * (4 * len(self.boxes) + sum(len(xy) for _, xy in self.polygons)) if self.images > 1 else 0


@dataclass(slots=True)
class _Image:
    """One image that the annotation file lists."""

    id: int
    name: str
    extent: tuple[float, float] | None
    """Width and height in pixels; None if the annotation file does not give them."""
    problem: str = ""
    """Reason for which the image is rejected; empty if it is valid."""
    objects: _Objects = field(default_factory=_Objects)


class _EntryError(ValueError):
    """Raised for an unusable entry of the annotation file; the message says why."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_extent(value: Any) -> TypeGuard[float]:
    return _is_number(value) and bool(0 < value <= _INT32)


def _entries(path: str, document: Any, name: str) -> list[dict[str, Any]]:
    found = document.get(name, []) if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(isinstance(e, dict) for e in found):
        raise JobError(f"{path}: needs an object whose {name!r} is a list of objects, as COCO has it")
    return found


def _integer(entry: dict[str, Any], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not -_INT32 <= value <= _INT32:
        raise _EntryError(f"its {name} must be an integer of 32 bits, got {value!r:.80}")
    return value


def load_annotations(path: str) -> Any:
    """Load the JSON file of annotations. Raises JobError if the file cannot be read or is not JSON."""
    try:
        return parse_json(Path(local_copy(path)).read_bytes())
    except OSError as e:
        raise JobError(f"{path} cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise JobError(f"{path} is not JSON: {str(e)[:200]}") from None


class _Annotated(BatchedOrigins):
    """An open COCO data set: its images in reading order, and arrays of the annotations of all images in turn."""

    groups: I64 | None = None

    def __init__(self, reader: Coco) -> None:
        path = reader.annotations_file
        document = load_annotations(path)
        images = self._images(path, document)
        self._annotate(path, document, images, reader)
        listed = sorted(images, key=lambda image: image.id)
        if reader.images:
            by_name = {image.name: image for image in images}
            unknown = [name for name in reader.images if name not in by_name]
            if unknown:
                raise JobError(f"{path} does not name the image {unknown[0]!r}, which is in images")
            listed = [by_name[name] for name in reader.images]
        if reader.skip_empty:
            listed = [image for image in listed if image.objects.boxes or image.problem]
        self._problems = {i: image.problem for i, image in enumerate(listed) if image.problem}
        # a rejected image may have any name: its file is not opened
        names = [b"." if image.problem else os.fsencode(image.name) for image in listed]
        self._files = FileSet(reader.file_root, names)
        self._named = [image.name for image in listed]
        self._reader = reader
        self._ids = np.array([image.id for image in listed], np.int32)
        self._counts = np.array([len(image.objects.boxes) for image in listed], np.int64)
        self._first = np.cumsum(self._counts) - self._counts
        self._labels = np.array([label for image in listed for label in image.objects.labels], np.int32)
        self._boxes = np.array([b for image in listed for b in image.objects.boxes], np.float32).reshape(-1, 4)
        extents = np.array([image.extent or (1, 1) for image in listed], np.float32).reshape(-1, 2)
        if reader.ltrb:
            self._boxes[:, 2:] += self._boxes[:, :2]
        if reader.ratio:
            self._boxes /= np.tile(np.repeat(extents, self._counts, axis=0), 2)
        self._polygons_of(listed, extents)
        self._images_of_masks = listed if reader.pixelwise_masks else []

    def _polygons_of(self, listed: list[_Image], extents: F32) -> None:
        rows, points, counts, vertex_counts = [], [], [], []
        for image in listed:
            vertex = 0
            for box, xy in image.objects.polygons:
                rows.append((box, vertex, vertex + len(xy) // 2))
                vertex += len(xy) // 2
                points += xy
            counts.append(len(image.objects.polygons))
            vertex_counts.append(vertex)
        self._polygons = np.array(rows, np.int32).reshape(-1, 3)
        self._polygon_counts = np.array(counts, np.int64)
        self._vertices = np.array(points, np.float32).reshape(-1, 2)
        self._vertex_counts = np.array(vertex_counts, np.int64)
        self._first_vertex = np.cumsum(self._vertex_counts) - self._vertex_counts
        if self._reader.ratio:
            self._vertices /= np.repeat(extents, self._vertex_counts, axis=0)

    @staticmethod
    def _images(path: str, document: Any) -> list[_Image]:
        images = []
        for number, entry in enumerate(_entries(path, document, "images")):
            name = entry.get("file_name")
            image = _Image(-1, name if isinstance(name, str) else f"image-{number}", None)
            try:
                image.id = _integer(entry, "id")
                if not isinstance(name, str) or not name or "\0" in name:
                    raise _EntryError(f"its file_name must be a text, got {name!r:.80}")
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise _EntryError(f"its file_name {name!r:.200} is outside of file_root")
                width, height = entry.get("width"), entry.get("height")
                if _is_extent(width) and _is_extent(height):
                    image.extent = width, height
            except _EntryError as e:
                image.problem = f"{path}: image {number}: {e}"
            images.append(image)
        return images

    @staticmethod
    def _annotate(path: str, document: Any, images: list[_Image], reader: Coco) -> None:
        categories: dict[int, int] = {}
        for number, entry in enumerate(_entries(path, document, "categories")):
            try:
                categories.setdefault(_integer(entry, "id"), number + 1)
            except _EntryError as e:
                raise JobError(f"{path}: category {number}: {e}") from None
        by_id: dict[int, _Objects] = {}
        for image in images:
            if not image.problem:
                image.objects = by_id.setdefault(image.id, image.objects)
                image.objects.images += 1
        for number, entry in enumerate(_entries(path, document, "annotations")):
            of = entry.get("image_id")
            objects = by_id.get(of) if isinstance(of, int) else None
            if objects is not None:
                try:
                    _annotation(entry, objects, categories, reader)
                except _EntryError as e:
                    objects.problem = objects.problem or f"{path}: annotation {number}: {e}"
        _check_shared(path, by_id)
        for image in images:
            image.problem = image.problem or image.objects.problem
            if not image.problem and image.extent is None and (reader.ratio or reader.pixelwise_masks):
                image.problem = f"{path}: image {image.id} has no width and height, which ratio and masks need"

    def __len__(self) -> int:
        return len(self._named)

    def origins_of(self, index: npt.NDArray[np.int64]) -> list[Origin]:
        return self._files.origins_of(index)

    def fingerprint(self) -> str:
        h = hashlib.sha256(self._files.fingerprint().encode())
        for column in (self._ids, self._counts, self._labels, self._boxes, self._polygons, self._vertices):
            h.update(np.ascontiguousarray(column).tobytes())
        return h.hexdigest()

    def inventory(self) -> InventoryEntries:
        files = self._files.inventory()
        told = np.array([zlib.crc32(repr(self._told(i)).encode()) for i in range(len(files))], np.int64)
        return InventoryEntries(files.blob, {**files.state, "annotations": told}, files.records)

    def _told(self, i: int) -> tuple[list[object], ...]:
        """Return id, labels, boxes and vertices of image ``i``; a job's list of inputs stores a hash of these."""
        box, vertex = int(self._first[i]), int(self._first_vertex[i])
        boxes, vertices = slice(box, box + int(self._counts[i])), slice(vertex, vertex + int(self._vertex_counts[i]))
        return ([int(self._ids[i])], self._labels[boxes].tolist(), self._boxes[boxes].tolist(),
                self._vertices[vertices].tolist())  # fmt: skip

    def close(self) -> None:
        self._files.close()

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        which = ctx.samples.index
        for i, index in enumerate(which.tolist() if self._problems else []):
            if index in self._problems:
                ctx.reject(i, "corrupt_record", self._problems[index])
        out = [
            self._files.read(ctx, which),
            _rows(ctx, self._boxes, self._counts, which),
            _rows(ctx, self._labels.reshape(-1, 1), self._counts, which).replace(
                shapes=self._counts[which].astype(np.int32).reshape(-1, 1)
            ),
        ]
        if self._reader.polygon_masks:
            out.append(_rows(ctx, self._polygons, self._polygon_counts, which))
            out.append(_rows(ctx, self._vertices, self._vertex_counts, which))
        if self._reader.pixelwise_masks:
            out.append(self._masks(ctx, which))
        if self._reader.image_ids:
            out.append(scalars(self._ids[which], ctx))
        return tuple(out)

    def _masks(self, ctx: Context, which: I64) -> Batch:
        """Return a batch with a label mask for each of the images ``which``: the label of every pixel, 0 outside of all
        objects. If objects overlap, the larger label counts."""
        shapes = np.ones((len(which), 3), np.int32)
        masks: list[I32] = []
        for i, index in enumerate(which.tolist()):
            image = self._images_of_masks[index]
            objects = image.objects
            width, height = (int(v) for v in image.extent or (0, 0))
            if image.problem or width * height > _MAX_PIXELS:
                if not image.problem:
                    ctx.reject(i, "too_large", f"a mask of {width} x {height} pixels is larger than {_MAX_PIXELS}")
                width = height = 0
            mask = np.zeros((height, width), np.int32)
            try:
                parts = [(box, polygon_mask(xy, height, width)) for box, xy in objects.polygons if mask.size]
                parts += [(box, runs_mask(runs, height, width)) for box, runs in objects.runs if mask.size]
            except ValueError as e:
                ctx.reject(i, "corrupt_record", f"{self._reader.annotations_file}: image {image.id}: {e}")
                parts = []
            for box, inside in sorted(parts, key=lambda part: objects.labels[part[0]]):
                mask[inside] = objects.labels[box]
            masks.append(mask.reshape(-1))
            shapes[i, :2] = mask.shape
        ends = np.cumsum(shapes.prod(axis=1, dtype=np.int64))
        data = np.concatenate(masks) if masks else np.empty(0, np.int32)
        return Batch(data, ends - shapes.prod(axis=1, dtype=np.int64), shapes, "HWC", ctx.samples)


def _check_shared(path: str, by_id: Mapping[int, _Objects]) -> None:
    """Raise JobError if images with equal ids would together receive too many copies of their boxes."""
    if sum(objects.shared for objects in by_id.values()) > _MAX_SHARED:
        largest = max(by_id, key=lambda id: by_id[id].shared)
        raise JobError(
            f"{path}: {by_id[largest].images} images have the id {largest}, and each would receive all of its "
            f"{len(by_id[largest].boxes)} boxes, which takes too much memory; give each image an id of its own"
        )


def _annotation(entry: dict[str, Any], objects: _Objects, categories: dict[int, int], reader: Coco) -> None:
    """Add the annotation ``entry`` to ``objects``, the annotations of its image, unless the reader's filters exclude
    it. Raises _EntryError if it is unusable."""
    box = entry.get("bbox")
    if box is None or (entry.get("iscrowd") and not reader.include_iscrowd):
        return
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise _EntryError(f"its bbox must be four numbers, got {box!r:.80}")
    if box[2] < reader.size_threshold or box[3] < reader.size_threshold:
        return
    category = _integer(entry, "category_id")
    if not reader.avoid_class_remapping and category not in categories:
        raise _EntryError(
            f"category {category} is not in categories (avoid_class_remapping keeps the numbers as they are)"
        )
    segmentation = entry.get("segmentation") if reader.polygon_masks or reader.pixelwise_masks else None
    if isinstance(segmentation, dict) and reader.pixelwise_masks:
        try:
            objects.runs.append((len(objects.boxes), runs_of(segmentation.get("counts"))))
        except ValueError as e:
            raise _EntryError(f"its segmentation: {e}") from None
    for xy in segmentation if isinstance(segmentation, list) else []:
        if not isinstance(xy, list) or len(xy) % 2 or not all(map(_is_number, xy)):
            raise _EntryError("its segmentation must be lists of x, y, x, y, ...")
        objects.polygons.append((len(objects.boxes), xy))
    objects.boxes.append(box)
    objects.labels.append(category if reader.avoid_class_remapping else categories[category])


def _rows(ctx: Context, table: npt.NDArray[Any], counts: I64, which: I64) -> Batch:
    """Return a view of the rows of ``table`` that belong to the images ``which``. The table holds ``counts[i]`` rows
    for image i, one image after the other."""
    starts = np.cumsum(counts) - counts
    width = table.shape[1]
    shapes = np.stack([counts[which], np.full(len(which), width)], axis=1).astype(np.int32)
    return Batch(table.reshape(-1), starts[which] * width, shapes, "", ctx.samples)


class Coco(Reader, name="readers.coco"):
    """Read images and annotations of the COCO format, in the order of image ids.

    Outputs: bytes (uint8, 1-D), boxes (float32, (n, 4): x, y, width, height), labels (int32, (n,): 1 for the first of
    categories), then with ``polygon_masks`` polygons (int32, (p, 3): box, first vertex, vertex after the last) and
    vertices (float32, (v, 2)), with ``pixelwise_masks`` the label of every pixel (int32, HWC), then with ``image_ids``
    the id (int32, (1,)).
    """

    aliases = ("coco_reader", "readers._coco")
    example = (
        "{op: readers.coco, file_root: ./val2017, annotations_file: instances_val2017.json, ratio: true, ltrb: true, "
        "out: [jpegs, boxes, labels]}"
    )
    shuffles_list: ClassVar[bool] = True

    annotations_file: Annotated[str, Arg("JSON file with images, annotations and categories")]
    file_root: Annotated[str | None, Arg("folder that the images' names are relative to")] = None
    ltrb: Annotated[bool, Arg("boxes as left, top, right, bottom")] = False
    ratio: Annotated[bool, Arg("boxes and vertices as fractions of the image's size")] = False
    size_threshold: Annotated[float, Arg("leave out boxes less wide or high than this, in pixels", ge=0)] = 0.1
    skip_empty: Annotated[bool, Arg("leave out images without boxes")] = False
    include_iscrowd: Annotated[bool, Arg("keep annotations of crowds")] = True
    avoid_class_remapping: Annotated[bool, Arg("labels are the category ids")] = False
    image_ids: Annotated[bool, Arg("also output the images' ids")] = False
    images: Annotated[tuple[str, ...] | None, Arg("read these files, in this order")] = None
    polygon_masks: Annotated[bool, Arg("also output polygons (crowds have none)")] = False
    masks: Annotated[bool, Arg("the old name of polygon_masks", deprecated="polygon_masks")] = False
    pixelwise_masks: Annotated[bool, Arg("also output the label of every pixel")] = False
    preprocessed_annotations: Annotated[str, Arg("folder of annotations that DALI has saved (not supported)")] = ""
    save_preprocessed_annotations: Annotated[bool, Arg("save annotations for DALI (not supported)")] = False
    save_preprocessed_annotations_dir: Annotated[
        str, Arg("folder for annotations that are saved for DALI (not supported)")
    ] = ""
    save_img_ids: Annotated[bool, Arg("the old name of image_ids", deprecated="image_ids")] = False
    meta_files_path: Annotated[
        str, Arg("the old name of preprocessed_annotations", deprecated="preprocessed_annotations")
    ] = ""
    dump_meta_files: Annotated[
        bool, Arg("the old name of save_preprocessed_annotations", deprecated="save_preprocessed_annotations")
    ] = False
    dump_meta_files_path: Annotated[
        str, Arg("the old name of save_preprocessed_annotations_dir", deprecated="save_preprocessed_annotations_dir")
    ] = ""

    def check(self) -> None:
        super().check()
        if self.pixelwise_masks and self.polygon_masks:
            raise SpecError("pixelwise_masks and polygon_masks exclude each other")
        for name in ("preprocessed_annotations", "save_preprocessed_annotations", "save_preprocessed_annotations_dir"):
            if self.is_set(name):
                raise SpecError(f"{name} is DALI's own format; give annotations_file")

    @property
    def num_outputs(self) -> int:
        return 3 + 2 * self.polygon_masks + self.pixelwise_masks + self.image_ids

    def shows(self) -> dict[int, str]:
        shown = {1: "boxes xyXY" if self.ltrb else "boxes xyWH", 2: "labels"}
        if self.polygon_masks:
            shown |= {3: "polygons", 4: "vertices"}
        elif self.pixelwise_masks:
            shown[3] = "classes"
        return shown

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        integers, floats = DALIDataType.INT32, DALIDataType.FLOAT
        out = [Spec((None,), DALIDataType.UINT8), Spec((None, 4), floats), Spec((None,), integers)]
        if self.polygon_masks:
            out += [Spec((None, 3), integers), Spec((None, 2), floats)]
        if self.pixelwise_masks:
            out.append(Spec((None, None, 1), integers, "HWC"))
        if self.image_ids:
            out.append(Spec((1,), integers))
        return tuple(out)

    def open(self) -> _Annotated:
        return _Annotated(self)
