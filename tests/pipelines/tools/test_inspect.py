"""Intermediates that inspect writes, read back by Pillow and NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from dali_run.cli import main as cli
from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.show.pictures import as_picture
from dali_run.pipelines.tools.intermediates import apart, dump


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


# -- against another run ----------------------------------------------------------------------------------------------


def spec_of(tmp_path: Path, name: str, *more: dict[str, Any]) -> str:
    folder = tmp_path / "data" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    for k, size in enumerate([(20, 30), (12, 14)]):
        Image.fromarray(np.full((*size, 3), 50 + k, np.uint8)).save(folder / f"{k}.png")
    steps = [
        {"op": "readers.file", "name": "Reader", "file_root": str(tmp_path / "data"), "out": ["files", "labels"]},
        {"op": "decoders.image", "in": "files", "out": "images"},
        *more,
    ]
    spec = tmp_path / f"{name}.yaml"
    spec.write_text(
        yaml.safe_dump({"version": 1, "vars": {"by": 0, "high": 10}, "graph": steps, "outputs": ["images"]})
    )
    return str(spec)


CROP = {"op": "crop", "in": "images", "crop": ["${high}", 8], "out": "images"}
SHIFT = {"op": "expr", "name": "shift", "expr": "images + ${by}", "out": "images"}


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["inspect", *arguments, "-n", "2", "--json"]) == 0
    return {row["name"]: row.get("apart") for row in json.loads(capsys.readouterr().out)["intermediates"]}


def test_a_spec_against_itself_with_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = spec_of(tmp_path, "one", CROP, SHIFT)
    same = {"samples": 2, "other_shape": 0, "differ": 0.0, "max": 0.0, "mean": 0.0}
    rows = inspected(capsys, spec, "--against", "by=3")
    assert rows["shift"] == {"samples": 2, "other_shape": 0, "differ": 1.0, "max": 3.0, "mean": 3.0}
    assert {name: row for name, row in rows.items() if name != "shift"} == dict.fromkeys(
        ["Reader[0]", "Reader[1]", "decoders.image", "crop"], same
    )
    rows = inspected(capsys, spec, "--set", "by=3", "--against", "high=9")  # --set is for both
    assert rows["shift"] == {"samples": 2, "other_shape": 2, "differ": None, "max": None, "mean": None}
    assert set(inspected(capsys, spec).values()) == {None}
    assert cli.main(["inspect", spec, "-n", "2", "--against", "by=3"]) == 0
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert shown["shift"] == ["int32", "HWC", "100.0%", "3", "3"]
    assert shown["crop"] == ["uint8", "HWC", "none"]


def test_a_spec_against_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = spec_of(tmp_path, "one", CROP, SHIFT), spec_of(tmp_path, "two", CROP)
    rows = inspected(capsys, one, "--against", two)
    assert rows["shift"] is None
    assert rows["crop"]["max"] == 0
    assert cli.main(["inspect", one, "--against", two, "--against", two]) == 2
    assert "one other spec" in capsys.readouterr().err
    assert cli.main(["inspect", str(tmp_path / "data"), "--against", "by=1"]) == 2
    assert "requires a spec" in capsys.readouterr().err


def test_only_the_same_records_are_compared() -> None:
    """Samples that one run has lost, or has in another order, are left out; NaN is equal to NaN."""

    def numbered(values: list[list[float]], index: list[int]) -> Batch:
        n = len(values)
        samples = Samples.numbered(n)
        samples.index[:] = index
        return Batch.from_list([np.float32(v) for v in values], "", samples)

    found = apart(
        numbered([[1, np.nan], [5, 6], [7, 8]], [0, 1, 2]), numbered([[2, np.nan], [0, 0], [7, 10]], [0, 9, 2])
    )
    assert found == {"samples": 2, "other_shape": 0, "differ": 0.5, "max": 2.0, "mean": 0.75}
    nothing = apart(numbered([[1, 2]], [0]), numbered([[1, 2]], [1]))
    assert nothing == {"samples": 0, "other_shape": 0, "differ": None, "max": None, "mean": None}
