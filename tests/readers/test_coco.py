"""readers.coco: what is wrong with an annotation file (what is right is compared with DALI in test_dali_readers)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.coco import Coco
from tests.kit.readers import content, fetch, open_reader

GOOD: dict[str, Any] = {
    "images": [{"id": i, "width": 8, "height": 4, "file_name": f"{i}.jpg"} for i in (3, 1, 2)],
    "categories": [{"id": 7}],
    "annotations": [{"image_id": i, "category_id": 7, "bbox": [i, 1, 2, 2]} for i in (1, 2, 2)],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for i in (1, 2, 3):
        (tmp_path / "images" / f"{i}.jpg").write_bytes(b"%d" % i)
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return tmp_path


def reader(root: Path, document: Any, **kwargs: Any) -> Coco:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (root / "annotations.json").write_bytes(text)
    return Coco(annotations_file=str(root / "annotations.json"), file_root=str(root / "images"), **kwargs)


def changed(path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(GOOD)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [  # of the image with id 1
        (("images", 1, "file_name"), "../secret.txt", "is outside of file_root"),
        (("images", 1, "file_name"), "/etc/passwd", "is outside of file_root"),
        (("images", 1, "file_name"), "a/../../secret.txt", "is outside of file_root"),
        (("images", 1, "file_name"), 5, "file_name must be a text"),
        (("images", 1, "file_name"), "a\0b", "file_name must be a text"),
        (("images", 1, "file_name"), "", "file_name must be a text"),
        (("images", 1, "id"), "x", "id must be an integer"),
        (("images", 1, "id"), 2**40, "id must be an integer of 32 bits"),
        (("images", 1, "width"), 0, "no width and height"),
        (("images", 1, "height"), "4", "no width and height"),
        (("annotations", 0, "bbox"), [1, 2, 3], "bbox must be four numbers"),
        (("annotations", 0, "bbox"), "box", "bbox must be four numbers"),
        (("annotations", 0, "bbox"), [1, 2, 3, float("inf")], "bbox must be four numbers"),
        (("annotations", 0, "category_id"), 8, "category 8 is not in categories"),
        (("annotations", 0, "category_id"), None, "category_id must be an integer"),
        (("annotations", 0, "segmentation"), [[1, 2, 3]], "segmentation must be lists"),
        (("annotations", 0, "segmentation"), [[1, "2"]], "segmentation must be lists"),
        (("annotations", 0, "segmentation"), [5], "segmentation must be lists"),
    ],
)
def test_a_bad_entry_costs_its_image(root: Path, path: tuple[Any, ...], value: Any, message: str) -> None:
    r = reader(root, changed(path, value), ratio=True, polygon_masks=True)
    source = open_reader(r)
    (data, boxes, labels, *_), rejects = fetch(r, source, range(3))
    assert [r.code for r in rejects] == ["corrupt_record"]
    assert message in rejects[0].message
    good = [i for i in range(3) if i != rejects[0].slot]
    kept = [(content(data)[i], boxes.sample(i).tolist(), labels.sample(i).tolist()) for i in good]
    assert kept == [(b"2", [[0.25, 0.25, 0.25, 0.5]] * 2, [1, 1]), (b"3", [], [])]
    assert b"secret" not in b"".join(content(data))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        ([], "'images' is a list of objects"),
        ({"images": {}}, "'images' is a list of objects"),
        ({"images": [], "annotations": 5}, "'annotations' is a list of objects"),
        ({"images": [], "categories": [{"id": "x"}]}, "category 0: its id must be an integer"),
    ],
)
def test_files_that_are_no_annotations(root: Path, document: Any, message: str) -> None:
    with pytest.raises(JobError, match=r"annotations\.json") as e:
        reader(root, document).open()
    assert message in str(e.value)


def test_bad_json_of_the_world(root: Path, shared_data: Path) -> None:
    files = sorted((shared_data / "corpus" / "json_bad").glob("*.json"))
    assert len(files) > 30
    for path in files:
        r = Coco(annotations_file=str(path), file_root=str(root / "images"))
        try:
            assert len(r.open()) == 0
        except JobError as e:
            assert path.name in str(e)  # noqa: PT017 - either outcome is right


def test_found_annotations(root: Path, shared_data: Path) -> None:
    seen = 0
    for path in sorted((shared_data / "corpus" / "coco").rglob("*.json")):
        r = Coco(annotations_file=str(path), file_root=str(root / "images"), polygon_masks=True, image_ids=True)
        try:
            source = open_reader(r)
        except JobError as e:
            assert path.name in str(e)  # noqa: PT017
            continue
        _, rejects = fetch(r, source, range(len(source)))
        assert len(rejects) == len(source)  # the images are not there
        seen += len(source)
    assert seen > 0


def test_arguments(root: Path) -> None:
    with pytest.raises(JobError, match=r"does not name the image .zz\.jpg."):
        reader(root, GOOD, images=("1.jpg", "zz.jpg")).open()
    with pytest.raises(JobError, match="cannot be read"):
        Coco(annotations_file=str(root / "none.json")).open()
    wrong: list[dict[str, Any]] = [
        {"pixelwise_masks": True, "polygon_masks": True},
        {"preprocessed_annotations": "x"},
    ]
    for kwargs in wrong:
        with pytest.raises(SpecError):
            Coco(annotations_file="x", **kwargs).check()


def test_fingerprint(root: Path) -> None:
    first = reader(root, GOOD).open().fingerprint()
    assert reader(root, GOOD).open().fingerprint() == first
    assert reader(root, changed(("annotations", 0, "bbox"), [1, 1, 2, 3])).open().fingerprint() != first
    (root / "images" / "1.jpg").write_bytes(b"another")
    assert reader(root, GOOD).open().fingerprint() != first


def test_masks(root: Path) -> None:
    square = [[1, 1, 3, 1, 3, 3, 1, 3]]
    document = changed(("annotations", 0, "segmentation"), square)
    crowd = {"counts": [4, 4, 24], "size": [4, 8]}
    document["annotations"].append({"image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 2], "segmentation": crowd})
    r = reader(root, document, pixelwise_masks=True)
    _, _, _, masks = fetch(r, open_reader(r), [0])[0]
    expected = np.zeros((4, 8, 1), np.int32)
    expected[1:3, 1:3] = 1
    expected[:, 1] = 1  # the crowd, down the second column (DALI leaves it out beside polygons of its label)
    np.testing.assert_array_equal(masks.sample(0), expected)


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1e12, 0, 1, 1, 2, 2]],
        [[0, 0, 3e6, 0, 0, 1] * 3],
        {"counts": "\n"},
        {"counts": "P"},
        {"counts": "oooooooooo0"},
        {"counts": "O"},
        {"counts": [1, -1]},
        {"counts": [1.5]},
        {"size": [4, 8]},
    ],
)
def test_masks_that_cannot_be(root: Path, segmentation: Any) -> None:
    r = reader(root, changed(("annotations", 0, "segmentation"), segmentation), pixelwise_masks=True)
    (data, *_), rejects = fetch(r, open_reader(r), range(3))
    assert [(x.slot, x.code) for x in rejects] == [(0, "corrupt_record")]
    assert content(data)[1:] == [b"2", b"3"]


def test_a_mask_of_a_huge_image_is_refused(root: Path) -> None:
    r = reader(root, changed(("images", 1, "width"), 2**30), pixelwise_masks=True)
    _, rejects = fetch(r, open_reader(r), range(3))
    assert [(x.slot, x.code) for x in rejects] == [(0, "too_large")]


def test_images_that_share_an_id_have_all_of_its_annotations(root: Path) -> None:
    """As in DALI (2.4.0, the same file): none of them is left without."""
    document = copy.deepcopy(GOOD)
    document["images"][0]["id"] = 2
    r = reader(root, document)
    (_, boxes, _), rejected = fetch(r, open_reader(r), [0, 1, 2])
    assert not rejected
    assert [b.tolist() for b in boxes] == [[[1, 1, 2, 2]], 2 * [[2, 1, 2, 2]], 2 * [[2, 1, 2, 2]]]
    document["annotations"][1]["bbox"] = "x"
    r = reader(root, document)
    _, rejected = fetch(r, open_reader(r), [0, 1, 2])
    assert len(rejected) == 2


@pytest.mark.parametrize("what", ["boxes", "polygons"])
def test_shared_ids_that_ask_for_all_memory_are_refused(root: Path, what: str) -> None:
    """5,000 images and 5,000 boxes with one id would be 25 million boxes."""
    count = 5000 if what == "boxes" else 100
    entry: dict[str, Any] = {"image_id": 1, "category_id": 7, "bbox": [1, 1, 2, 2]}
    entry["segmentation"] = [[0.0] * (4 if what == "boxes" else 5000)]
    document = {
        "images": [{"id": 1, "width": 8, "height": 4, "file_name": "1.jpg"}] * count,
        "categories": [{"id": 7}], "annotations": [entry] * count,
    }  # fmt: skip
    with pytest.raises(JobError, match=f"{count} images have the id 1, .* give each image an id of its own"):
        open_reader(reader(root, document, polygon_masks=what == "polygons"))
