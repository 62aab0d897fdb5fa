"""Overlays that `inspect` draws on pictures: boxes, polygons, classes of pixels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.pipelines.tools.intermediates import inspect_spec
from dali_run.pipelines.tools.overlays import color_of, with_boxes, with_classes, with_polygons

WHITE = Image.new("RGB", (100, 50), "white")


def coloured(picture: Image.Image) -> np.ndarray:
    return (np.asarray(picture) != 255).any(axis=2)


@pytest.mark.parametrize(
    ("box", "layout"),
    [([0.2, 0.2, 0.6, 0.8], "xyXY"), ([0.2, 0.2, 0.4, 0.6], "xyWH"), ([20, 10, 60, 40], "xyXY"),
     ([0.8, 0.6, 0.2, 0.2], "YXyx")],
)  # fmt: skip
def test_a_box_in_any_order_and_unit(box: list[float], layout: str) -> None:
    drawn = with_boxes(WHITE, np.array([box], np.float32), layout)
    rows, columns = np.nonzero(coloured(drawn))
    assert [columns.min(), rows.min(), columns.max(), rows.max()] == [20, 10, 60, 40]
    assert drawn.getpixel((40, 25)) == (255, 255, 255)


def test_labels_choose_the_colour() -> None:
    boxes = np.array([[0, 0, 0.4, 1], [0.5, 0, 0.9, 1]], np.float32)
    drawn = with_boxes(WHITE, boxes, "xyXY", np.array([5, 2]))
    assert drawn.getpixel((0, 40)) == color_of(5)
    assert drawn.getpixel((50, 40)) == color_of(2)


def test_boxes_that_are_no_numbers_or_far_away_do_no_harm() -> None:
    with_boxes(WHITE, np.array([[np.nan, -1e30, np.inf, 5], [9, 9, 3, 3]], np.float32))
    with_boxes(WHITE, np.zeros((0, 4), np.float32))


def test_polygons_are_filled() -> None:
    vertices = np.array([[10, 10], [60, 10], [60, 40], [10, 40], [70, 5], [90, 5], [80, 20]], np.float32)
    drawn = coloured(with_polygons(WHITE, np.array([[3, 0, 4], [1, 4, 7]]), vertices))
    assert drawn[25, 30]
    assert drawn[8, 80]
    assert not drawn[45, 50]
    relative = with_polygons(WHITE, np.array([[3, 0, 4]]), vertices / np.array([100, 50], np.float32))
    assert coloured(relative)[25, 30]


def test_classes_but_the_background_are_tinted() -> None:
    classes = np.zeros((50, 100), np.int32)
    classes[10:20, 30:40] = 2
    np.testing.assert_array_equal(coloured(with_classes(WHITE, classes)), classes == 2)


def test_a_spec_with_boxes_polygons_and_classes(tmp_path: Path) -> None:
    """Boxes are drawn over the picture that they belong to: mirrored ones over the mirrored picture."""
    (tmp_path / "images").mkdir()
    picture = np.full((40, 80, 3), 255, np.uint8)
    Image.fromarray(picture).save(tmp_path / "images" / "a.png")
    square = [8, 4, 24, 4, 24, 20, 8, 20]
    document = {
        "images": [{"id": 1, "file_name": "a.png", "width": 80, "height": 40}],
        "annotations": [{"image_id": 1, "category_id": 4, "bbox": [8, 4, 16, 16], "segmentation": [square]}],
        "categories": [{"id": 4}],
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    for masks, outputs in (("polygon_masks", "polygons, vertices"), ("pixelwise_masks", "classes")):
        spec = tmp_path / f"{masks}.yaml"
        spec.write_text(f"""
version: 1
name: drawn
graph:
  - {{op: readers.coco, file_root: {tmp_path}/images, annotations_file: {tmp_path}/a.json, {masks}: true, ratio: true,
     ltrb: true, out: [files, boxes, labels, {outputs}]}}
  - {{op: decoders.image, in: files, output_type: RGB, out: images}}
  - {{op: bb_flip, in: boxes, ltrb: true, out: mirrored}}
  - {{op: flip, in: images, out: images}}
outputs: {{image: images, box: mirrored}}
""")
        folder = tmp_path / masks
        rows = {r["name"]: r["files"] for r in inspect_spec(spec, None, 1, folder)["intermediates"]}
        over = {name: [f for f in files if "drawn" in f] for name, files in rows.items()}
        assert [name for name, files in over.items() if files] == ["readers.coco[1]", "readers.coco[3]", "bb_flip"]
        places = {}
        for name in ("readers.coco[1]", "readers.coco[3]", "bb_flip"):
            y, x = np.nonzero(coloured(Image.open(folder / over[name][0])))
            places[name] = ((x.min() + 1) // 8, (y.min() + 1) // 4, x.max() // 8, y.max() // 4)
        assert places["readers.coco[1]"] == (1, 1, 3, 5)
        assert places["readers.coco[3]"][:2] == (1, 1)
        assert places["bb_flip"][0] == 7
