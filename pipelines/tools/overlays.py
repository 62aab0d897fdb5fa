"""Boxes, polygons and class masks drawn over the images to which they belong; used by `intermediates`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...ops.batch import Batch
from ..graph.nodes import Edge, Node

Pictures = Mapping[int, Image.Image]
"""Images of a batch, by the index of the sample in it. Dropped samples are missing."""

_BLANK = 300
_PALETTE = [tuple(int(v) for v in row) for row in (
    (230, 25, 75), (60, 180, 75), (255, 200, 25), (0, 130, 200), (245, 130, 48), (145, 30, 180), (70, 240, 240),
    (240, 50, 230), (188, 246, 12), (250, 190, 190), (0, 128, 128), (170, 110, 40), (128, 0, 0), (128, 128, 0),
)]  # fmt: skip


@dataclass(slots=True)
class Drawing:
    """An output of one operator that can be drawn over images, such as boxes."""

    node: int
    kind: str
    """Kind of the output: boxes, polygons or classes."""
    layout: str
    """Layout of the boxes, such as xyXY or xyWH; empty for other kinds."""
    edge: Edge
    others: dict[str, Edge] = field(default_factory=dict)
    """Other outputs of the operator that the drawing needs, by name: labels of boxes, vertices of polygons."""


def drawings(nodes: Sequence[Node]) -> list[Drawing]:
    """Return the outputs of a graph that can be drawn, in the order of its operators. Operators declare them in
    `Operator.shows`; class masks also count after operators with one output."""
    drawable: list[Drawing] = []
    classes: set[Edge] = set()
    for node in nodes:
        shown = dict(node.op.shows())
        if not shown and node.op.num_outputs == 1 and node.inputs and node.inputs[0] in classes:
            shown = {0: "classes"}
        kinds = {description.partition(" ")[0]: k for k, description in shown.items()}
        for k, description in shown.items():
            kind, _, layout = description.partition(" ")
            others: dict[str, Edge] = {o: Edge(node.id, kinds[o]) for o in ("labels", "vertices") if o in kinds}
            if kind in ("boxes", "polygons", "classes"):
                drawable.append(Drawing(node.id, kind, layout, Edge(node.id, k), others))
            if kind == "classes":
                classes.add(Edge(node.id, k))
    return drawable


def overlays(
    nodes: Sequence[Node], batches: Mapping[Edge, Batch], pictures: Mapping[Edge, Pictures]
) -> list[tuple[Edge, Pictures]]:
    """Return (edge, images) for each output of the graph that can be drawn, such as boxes. It is drawn over the next
    image that the graph computes, unless another output of the same kind comes first; otherwise over the last image
    before, or over nothing."""
    to_draw = drawings(nodes)
    masks = {d.edge for d in to_draw if d.kind == "classes"}
    plain = sorted((e for e in pictures if e not in masks), key=lambda e: (e.node, e.output))
    rows = []
    for drawing in to_draw:
        later = [d.node for d in to_draw if d.kind == drawing.kind and d.node > drawing.node]
        end = min(later, default=1 << 62)
        if drawing.kind == "classes":
            base = _of_its_size(drawing, batches, pictures, plain)
        else:
            after = [e for e in plain if drawing.node < e.node < end]
            before = [e for e in plain if e.node < drawing.node]
            base = pictures[after[0]] if after else pictures[before[-1]] if before else {}
        drawn = _drawn(drawing, batches, base)
        if drawn:
            rows.append((drawing.edge, drawn))
    return rows


def _of_its_size(
    drawing: Drawing, batches: Mapping[Edge, Batch], pictures: Mapping[Edge, Pictures], plain: Sequence[Edge]
) -> Pictures:
    """Return the images over which to draw class masks: the nearest ones of equal size, preferably computed later."""
    extents = {int(s): _plane(np.asarray(x)).shape[::-1] for s, x in _by_slot(batches[drawing.edge])}
    for edge in sorted(plain, key=lambda e: (abs(e.node - drawing.node), -e.node)):
        if all(s in pictures[edge] and pictures[edge][s].size == size for s, size in extents.items()):
            return pictures[edge]
    return {}


def _by_slot(batch: Batch) -> list[tuple[int, NDArray[Any]]]:
    return list(zip(batch.samples.slot.tolist(), map(np.asarray, batch), strict=True))


def _plane(classes: NDArray[Any]) -> NDArray[Any]:
    return classes.reshape(classes.shape[:2]) if classes.ndim == 3 and classes.shape[2] == 1 else classes


def _drawn(drawing: Drawing, batches: Mapping[Edge, Batch], base: Pictures) -> Pictures:
    others = {name: dict(_by_slot(batches[edge])) for name, edge in drawing.others.items()}
    out: dict[int, Image.Image] = {}
    for slot, values in _by_slot(batches[drawing.edge]):
        if drawing.kind == "classes":
            plane = _plane(values)
            if plane.ndim != 2 or not plane.size:
                continue
            under = base.get(slot) or Image.new("RGB", plane.shape[::-1], "white")
            out[slot] = with_classes(under, plane)
            continue
        under = base.get(slot) or Image.new("RGB", (_BLANK, _BLANK), (160, 160, 160))
        if drawing.kind == "boxes" and values.ndim == 2 and values.shape[1] == 4:
            out[slot] = with_boxes(under, values, drawing.layout, others.get("labels", {}).get(slot))
        elif drawing.kind == "polygons" and slot in others.get("vertices", {}):
            out[slot] = with_polygons(under, values, others["vertices"][slot])
    return out


def color_of(number: int) -> tuple[int, ...]:
    """Return the RGB color in which a class or an object is drawn, by its number."""
    return _PALETTE[int(number) % len(_PALETTE)]


def with_boxes(
    picture: Image.Image, boxes: NDArray[Any], layout: str = "xyXY", labels: NDArray[Any] | None = None
) -> Image.Image:
    """Return ``picture`` with boxes drawn over it. ``boxes`` [n, 4] are in the order of ``layout``, in fractions of the
    image (if no value is above 2) or in pixels. Each label has a color, and is written as a number."""
    drawn = picture.convert("RGB")
    canvas = ImageDraw.Draw(drawn)
    at = [layout.index(c) for c in ("xyXY" if "X" in layout else "xyWH")]
    corners_of_boxes = np.asarray(boxes, np.float64)[:, at]
    if "X" not in layout:
        corners_of_boxes[:, 2:] += corners_of_boxes[:, :2]
    if corners_of_boxes.size and np.abs(corners_of_boxes).max() <= 2:
        corners_of_boxes = corners_of_boxes * (drawn.width, drawn.height, drawn.width, drawn.height)
    numbers = np.arange(len(corners_of_boxes)) if labels is None else np.asarray(labels).reshape(-1)
    width = max(1, max(drawn.size) // 150)
    for k, row in enumerate(corners_of_boxes):
        x0, y0, x1, y1 = (float(np.clip(v, -1e6, 1e6)) for v in np.nan_to_num(row))
        number = int(numbers[k]) if k < len(numbers) else k
        corners = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
        canvas.rectangle(corners, outline=color_of(number), width=width)
        if labels is not None:
            canvas.text((corners[0] + width + 1, corners[1] + width), str(number), fill=color_of(number))
    return drawn


def with_polygons(picture: Image.Image, polygons: NDArray[Any], vertices: NDArray[Any]) -> Image.Image:
    """Return ``picture`` with polygons drawn over it. ``polygons`` [n, 3] are (object, first vertex, vertex after the
    last); ``vertices`` [v, 2] are in fractions of the image (if no value is above 2) or in pixels."""
    drawn = picture.convert("RGB")
    points = np.asarray(vertices, np.float64).reshape(len(vertices), -1)[:, :2]
    if points.size and np.abs(points).max() <= 2:
        points = points * (drawn.width, drawn.height)
    cover = Image.new("RGBA", drawn.size)
    canvas = ImageDraw.Draw(cover)
    for number, first, end in np.asarray(polygons, np.int64).reshape(-1, 3).tolist():
        outline = [(float(x), float(y)) for x, y in np.nan_to_num(points[max(first, 0) : max(end, 0)]).clip(-1e6, 1e6)]
        if len(outline) >= 2:
            canvas.polygon(outline, fill=(*color_of(number), 90), outline=(*color_of(number), 255))
    drawn.paste(cover, mask=cover)
    return drawn


def with_classes(picture: Image.Image, classes: NDArray[Any]) -> Image.Image:
    """Return ``picture`` with every class of the mask ``classes``, except 0, in a half-transparent color."""
    drawn = np.asarray(picture.convert("RGB"), np.float32)
    palette = np.array(_PALETTE, np.float32)
    numbers = np.asarray(classes).astype(np.int64)
    tinted = drawn * 0.45 + palette[numbers % len(palette)] * 0.55
    return Image.fromarray(np.where((numbers != 0)[:, :, None], tinted, drawn).round().astype(np.uint8))
