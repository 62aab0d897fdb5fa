"""Intermediates that inspect writes, read back by Pillow and NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.show.pictures import as_picture
from dali_run.pipelines.tools.intermediates import dump


def batch(arrays: list[np.ndarray], layout: str) -> Batch:
    return Batch.from_list(arrays, layout, Samples.numbered(len(arrays)))


def test_every_kind_of_intermediate_becomes_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, s, np.uint8) for s in ((20, 30, 3), (10, 12, 3))]
    floats = [x.transpose(2, 0, 1).astype(np.float32) / 64 - 1 for x in images]
    path = tmp_path / "in.jpg"
    Image.fromarray(images[0]).save(path)
    encoded = np.frombuffer(path.read_bytes(), np.uint8)
    rows = dump(
        [
            ("Reader", 0, batch([encoded, encoded], "")),
            ("Reader", 1, batch([np.array([3], np.int32), np.array([4], np.int32)], "")),
            ("decoders.image", 0, batch(images, "HWC")),
            ("norm/../x", 0, batch(floats, "CHW")),
        ],
        tmp_path / "out",
    )
    assert [r["name"] for r in rows] == ["Reader[0]", "Reader[1]", "decoders.image", "norm/../x"]
    assert (tmp_path / "out" / rows[0]["files"][0]).read_bytes() == path.read_bytes()
    assert rows[0]["files"][0].endswith(".jpg")
    assert np.load(tmp_path / "out" / rows[1]["files"][1]).tolist() == [4]
    for i in range(2):
        shown = np.asarray(Image.open(tmp_path / "out" / rows[2]["files"][i]))
        np.testing.assert_array_equal(shown, images[i])
    low, high = int(images[0].min()), int(images[0].max())
    stretched = np.asarray(Image.open(tmp_path / "out" / rows[3]["files"][0]))
    expected = (images[0].astype(np.float64) - low) * 255 / (high - low)
    assert np.abs(stretched - expected).max() <= 0.51
    assert rows[2]["shapes"] == [[10, 12, 3], [20, 30, 3]]
    assert rows[2]["dtype"] == "uint8"
    everything = np.concatenate([x.reshape(-1) for x in images])
    assert (rows[2]["min"], rows[2]["max"]) == (everything.min(), everything.max())
    assert abs(rows[2]["mean"] - everything.mean()) < 1e-9
    assert {p.name for p in (tmp_path / "out").iterdir()} == {f for r in rows for f in r["files"]} | {
        "contact-sheet.png"
    }
    sheet = np.asarray(Image.open(tmp_path / "out" / "contact-sheet.png"))
    assert any((sheet[y : y + 20, 8:38] == images[0]).all() for y in range(sheet.shape[0] - 20))


def test_what_is_no_image_is_no_picture() -> None:
    assert as_picture(np.zeros((4, 5, 2), np.uint8), "HWC") is None
    assert as_picture(np.zeros((0, 5, 3), np.uint8), "HWC") is None
    assert as_picture(np.zeros((2, 4, 5, 2), np.uint8), "FHWC") is None
    assert as_picture(np.zeros(5, np.float32), "") is None


def test_flat_and_broken_floats_are_shown() -> None:
    odd = np.array([[[np.nan], [1.0]], [[np.inf], [3.0]]], np.float32)
    picture = as_picture(odd, "HWC")
    assert picture is not None
    assert np.asarray(picture).tolist() == [[0, 0], [255, 255]]
    flat = as_picture(np.full((2, 2), 7, np.int64), "HW")
    assert flat is not None
    assert np.asarray(flat).tolist() == [[0, 0], [0, 0]]
