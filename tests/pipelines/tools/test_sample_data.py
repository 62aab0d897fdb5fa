"""Sample data, read back by Pillow, lmdb and the tfrecord package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import tfrecord
from PIL import Image, ImageOps

from dali_run.ops.errors import JobError, SpecError
from dali_run.pipelines.tools import sample_data
from dali_run.pipelines.tools.sample_data import CLASSES, make_sample_data, plan_pictures

COUNT = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sample") / "data"
    make_sample_data(made, COUNT, seed=3)
    return made


def digests(folder: Path) -> dict[str, str]:
    """Of all files but LMDB's, whose unused pages are not defined."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.suffix != ".mdb"
    }


def test_folders_hold_classes_and_all_pictures_open(folder: Path) -> None:
    described = {p["name"]: p for p in json.loads((folder / "sample-data.json").read_text())["pictures"]}
    files = [*(folder / "train").glob("*/*.jpg"), *(folder / "val").glob("*/*.jpg")]
    assert len(files) == COUNT == len(described)
    assert {p.parent.name for p in files} == set(CLASSES)
    assert len(list((folder / "val").rglob("*.jpg"))) == COUNT // 4
    for path in files:
        picture = described[f"{path.parent.name}/{path.name}"]
        with Image.open(path) as image:
            assert image.mode == ("L" if picture["gray"] else "RGB")
            assert ("progressive" in image.info) == picture["progressive"]
            assert image.getexif().get(0x0112, 1) == picture["orientation"]
            image.load()
            upright = ImageOps.exif_transpose(image)
            assert upright.size == (picture["width"], picture["height"])
            assert np.asarray(upright).std() > 5


def test_chroma_is_sampled_as_planned(folder: Path) -> None:
    factors = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}
    seen = set()
    for picture in json.loads((folder / "sample-data.json").read_text())["pictures"]:
        path = next(folder.glob(f"*/{picture['name']}"))
        with Image.open(path) as image:
            layers: Any = image.layer  # type: ignore[attr-defined]
        if not picture["gray"]:
            assert layers[0][1:3] == factors[picture["subsampling"]]
            seen.add(picture["subsampling"])
    assert seen == set(factors)


def test_the_default_count_holds_every_kind_in_the_training_part() -> None:
    training = [p for p in plan_pictures(96, 0) if p.number // len(CLASSES) % 4 != 3]
    assert {p.orientation for p in training} == set(range(1, 9))
    for label in range(len(CLASSES)):
        mine = [p for p in training if p.label == label]
        assert {p.gray for p in mine} == {p.progressive for p in mine} == {True, False}
        assert {p.subsampling for p in mine} == {"4:2:0", "4:2:2", "4:4:4"}
    assert min(min(p.width, p.height) for p in training) >= 80
    assert max(max(p.width, p.height) for p in training) <= 900


def test_an_exif_rotated_picture_is_upright_after_orientation() -> None:
    for orientation in range(1, 9):
        picture = sample_data.Picture(0, 1, 64, 40, "4:4:4", False, False, orientation, 95)
        image = Image.new("RGB", (64, 40), (200, 200, 200))
        image.paste((0, 0, 0), (0, 0, 20, 10))
        import io

        with Image.open(io.BytesIO(sample_data.encode(image, picture))) as stored:
            upright = np.asarray(ImageOps.exif_transpose(stored), np.int16)
        assert np.abs(upright - np.asarray(image, np.int16)).max() < 40


def test_tfrecord_package_reads_the_training_pictures(folder: Path) -> None:
    train = sorted((folder / "train").rglob("*.jpg"))
    records: list[dict[str, Any]] = []
    for shard in sorted((folder / "tfrecord").glob("*.tfrecord")):
        records += tfrecord.tfrecord_loader(str(shard), None)
    assert len(records) == len(train)
    for path, record in zip(train, records, strict=True):
        assert bytes(record["image/encoded"]) == path.read_bytes()
        assert bytes(record["image/class/text"]).decode() == path.parent.name
        assert record["image/class/label"][0] == sorted(CLASSES).index(path.parent.name)
        with Image.open(path) as image:
            assert (record["image/width"][0], record["image/height"][0]) == image.size


def test_tfrecord_checksums_are_right(folder: Path) -> None:
    import struct

    from dali_run.ops.storage.crc32c_cpu import masked_crc32c

    data = next((folder / "tfrecord").glob("*.tfrecord")).read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for start, size in ((at, 8), (at + 12, length)):
            (stored,) = struct.unpack_from("<I", data, start + size)
            assert masked_crc32c(np.frombuffer(bytearray(data), np.uint8), start, start + size) == stored
        at += 16 + length


def test_lmdb_holds_datums_of_the_training_pictures(folder: Path) -> None:
    train = sorted((folder / "train").rglob("*.jpg"))
    with lmdb.open(str(folder / "lmdb"), readonly=True, lock=False) as env, env.begin() as txn:
        records = list(txn.cursor())
    assert len(records) == len(train)
    for i, (path, (key, value)) in enumerate(zip(train, records, strict=True)):
        assert bytes(key).decode() == f"{i:08d}_{path.parent.name}/{path.name}"
        assert path.read_bytes() in bytes(value)
        assert bytes(value)[-4:] == bytes([5 << 3, sorted(CLASSES).index(path.parent.name), 7 << 3, 1])


def test_annotations_fit_their_pictures(folder: Path) -> None:
    document = json.loads((folder / "coco" / "instances.json").read_text())
    sizes = {}
    for entry in document["images"]:
        with Image.open(folder / "coco" / "images" / entry["file_name"]) as image:
            sizes[entry["id"]] = image.size
            assert image.size == (entry["width"], entry["height"])
    known = {c["id"] for c in document["categories"]}
    crowds = 0
    for entry in document["annotations"]:
        width, height = sizes[entry["image_id"]]
        x, y, w, h = entry["bbox"]
        assert entry["category_id"] in known
        assert x >= 0
        assert x + w <= width + 0.01
        assert y >= 0
        assert y + h <= height + 0.01
        if entry["iscrowd"]:
            crowds += 1
            assert sum(entry["segmentation"]["counts"]) == width * height
            assert sum(entry["segmentation"]["counts"][1::2]) == pytest.approx(entry["area"], rel=0.1)
    assert crowds


def test_a_seed_gives_the_same_files_and_another_seed_others(folder: Path, tmp_path: Path) -> None:
    make_sample_data(tmp_path / "same", COUNT, seed=3)
    assert digests(tmp_path / "same") == digests(folder)
    make_sample_data(tmp_path / "other", 8, seed=4)
    other = digests(tmp_path / "other")
    assert all(other[k] != v for k, v in digests(folder).items() if k in other)


def test_a_folder_in_use_is_refused_and_the_same_request_costs_nothing(folder: Path, tmp_path: Path) -> None:
    before = digests(folder)
    assert make_sample_data(folder, COUNT, seed=3)["already_there"]
    assert digests(folder) == before
    with pytest.raises(SpecError, match="contains other data"):
        make_sample_data(folder, COUNT + 1, seed=3)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SpecError, match="contains other data"):
        make_sample_data(tmp_path, 8)
    with pytest.raises(SpecError, match="at least 8"):
        make_sample_data(tmp_path / "none", 7)


@pytest.mark.parametrize("count", [8, 12, 13, 16, 19])
def test_few_pictures_fill_every_folder(count: int, tmp_path: Path) -> None:
    """That the configs read, for every class."""
    made = make_sample_data(tmp_path / "data", count)
    for split in ("train", "val"):
        assert {p.parent.name for p in (tmp_path / "data" / split).glob("*/*.jpg")} == set(CLASSES)
        assert len(list((tmp_path / "data" / split).glob("*/*.jpg"))) == made[split]
    assert made["val"] == len(CLASSES)
    assert made["train"] + made["val"] == count
    assert len(list((tmp_path / "data" / "tfrecord").iterdir())) == 2


def test_where_nothing_can_be_written_the_folder_is_named() -> None:
    with pytest.raises(JobError, match=r"^/proc/here cannot be created: "):
        make_sample_data(Path("/proc/here"), 8)


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_data, "_write_tfrecord", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_sample_data(tmp_path / "data", 8)
    assert list(tmp_path.iterdir()) == []
