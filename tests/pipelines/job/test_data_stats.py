"""Statistics of data sets beside NumPy and Pillow, of every container, and of what a spec makes."""

from __future__ import annotations

import json
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.cli import main as cli
from dali_run.pipelines.job.convert import ConvertOptions, convert
from dali_run.pipelines.job.data_stats import data_stats, spec_stats
from tests.kit.writers import HAS_PYARROW

CONTAINERS = ["tfrecord", "lmdb", "webdataset", "recordio", "files", *(["parquet"] if HAS_PYARROW else [])]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of unequal size; PNG, so that every decoder gives the same pixels; gray ones among them."""
    root = tmp_path_factory.mktemp("stats") / "pictures"
    rng = np.random.default_rng(5)
    for label, n in enumerate((7, 3, 2)):
        (root / f"class{label}").mkdir(parents=True)
        for k in range(n):
            h, w = rng.integers(8, 40, 2)
            shape = (h, w) if k == 1 else (h, w, 3)
            pixels = rng.integers(0, 120 + 60 * label, shape).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{k}.png")
    return root


def expected(root: Path) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """All pictures as RGB, and the mean and deviation of each channel where every picture counts alike."""
    images = [np.asarray(Image.open(p).convert("RGB"), np.float64) / 255 for p in sorted(root.rglob("*.png"))]
    mean = np.mean([i.mean((0, 1)) for i in images], axis=0)
    square = np.mean([(i * i).mean((0, 1)) for i in images], axis=0)
    return images, mean, np.sqrt(square - mean**2)


def check_pictures(found: dict[str, Any], root: Path) -> None:
    images, mean, std = expected(root)
    assert found["images"]["mean"] == pytest.approx(mean, abs=1e-6)
    assert found["images"]["std"] == pytest.approx(std, abs=1e-5)
    widths = np.array([i.shape[1] for i in images])
    assert found["images"]["width"] == pytest.approx({
        "min": widths.min(), "p5": np.percentile(widths, 5), "median": np.median(widths),
        "p95": np.percentile(widths, 95), "max": widths.max(), "mean": widths.mean(),
    })  # fmt: skip
    assert found["images"]["shorter"]["min"] == min(min(i.shape[:2]) for i in images)
    assert found["images"]["pixels"]["max"] == max(i.shape[0] * i.shape[1] for i in images)


def test_a_folder_of_classes(pictures: Path) -> None:
    found = data_stats(pictures)
    check_pictures(found, pictures)
    assert (found["samples"], found["corrupt"], found["kind"]) == (12, 0, "files")
    sizes = [p.stat().st_size for p in pictures.rglob("*.png")]
    assert found["fields"]["image"]["bytes"] == sum(sizes)
    assert found["fields"]["image"]["formats"] == {"png": 12}
    assert found["fields"]["image"]["sizes"]["max"] == max(sizes)
    label = found["fields"]["label"]
    assert label["counts"] == {0: 7, 1: 3, 2: 2}
    assert label["names"] == {0: "class0", 1: "class1", 2: "class2"}
    assert (label["classes"], label["fewest"], label["most"]) == (3, 2, 7)


@pytest.mark.parametrize("to", CONTAINERS)
def test_every_container_says_the_same(to: str, pictures: Path, tmp_path: Path) -> None:
    assert convert(pictures, tmp_path / to, ConvertOptions(to, samples=5)).exit_code == 0
    found = data_stats(tmp_path / to)
    check_pictures(found, pictures)
    assert found["samples"] == 12
    if to != "files":
        counts = [f["counts"] for f in found["fields"].values() if f["what"] == "number"]
        assert {0: 7, 1: 3, 2: 2} in counts


def test_what_is_damaged_is_listed_and_counted(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "in"
    for p in pictures.rglob("*.png"):
        (root / p.parent.name).mkdir(parents=True, exist_ok=True)
        (root / p.parent.name / p.name).write_bytes(p.read_bytes())
    whole = (root / "class0/2.png").read_bytes()
    (root / "class0/cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "class1/readme.txt").write_text("no picture")
    (root / "class1/empty.jpg").write_bytes(b"")
    found = data_stats(root)
    check_pictures(found, pictures)  # those that cannot be used do not count
    assert found["samples"] == 15
    assert found["corrupt"] == 3
    assert {Path(r["key"]).stem for r in found["rejects"]} == {"cut", "readme", "empty"}
    assert Counter(found["codes"]) == Counter(r["code"] for r in found["rejects"])
    assert cli.main(["stats", str(root), "-q"]) == 3
    told = capsys.readouterr().out
    assert "3 samples cannot be used" in told
    assert "class1/readme" in told
    assert "class0 (7)" in told
    assert cli.main(["stats", str(root), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["corrupt"] == 3


def test_a_part_of_the_data_is_chosen_at_random(pictures: Path) -> None:
    found = data_stats(pictures, limit=6)
    assert found["samples"] == 6
    assert found["chosen_at_random"]
    assert len(found["fields"]["label"]["counts"]) > 1  # not the first six, which are of one class
    assert found == {**data_stats(pictures, limit=6), "seconds": found["seconds"],
                     "samples_per_second": found["samples_per_second"]}  # fmt: skip


def test_outputs_of_a_spec(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the encoders; channels of CHW; what is not finite is counted apart."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
version: 1
graph:
  - {{op: readers.file, file_root: {pictures}, out: [files, labels]}}
  - {{op: decoders.image, in: files, out: images}}
  - {{op: crop_mirror_normalize, in: images, crop: [8, 8], mean: [100, 110, 120], std: [50, 60, 70], out: tensors}}
  - {{op: expr, expr: "0.0 / (labels - 1)", out: odd}}
outputs: {{image: images, tensor: tensors, odd: odd, file: files, label: labels}}
write: {{writer: webdataset, path: {tmp_path / "out"}, fields: {{image: {{encode: jpeg}}, label: {{}}}}}}
""")
    found = spec_stats(spec)
    assert not (tmp_path / "out").exists()
    outputs = found["outputs"]
    images, mean, _ = expected(pictures)
    assert outputs["image"]["mean"] == pytest.approx(mean * 255, abs=1e-3)
    assert outputs["image"]["max"] == [max(i[..., c].max() for i in images) * 255 for c in range(3)]
    crops = []
    for i in images:
        y, x = ((n - 8) / 2 for n in i.shape[:2])
        y, x = round(y + 1e-9), round(x + 1e-9)  # as the operator rounds halves here
        crops.append((i[y : y + 8, x : x + 8] * 255 - (100, 110, 120)) / (50, 60, 70))
    assert outputs["tensor"]["mean"] == pytest.approx(np.mean(crops, axis=(0, 1, 2)), abs=0.05)
    assert outputs["tensor"]["std"] == pytest.approx(np.std(crops, axis=(0, 1, 2)), abs=0.05)
    assert [e["min"] for e in outputs["tensor"]["extents"]] == [3, 8, 8]
    assert outputs["file"]["formats"] == {"png": 12}
    assert outputs["label"]["counts"] == {0: 7, 1: 3, 2: 2}
    assert cli.main(["stats", str(spec), "-q", "--limit", "4"]) == 0
    assert "4 samples" in capsys.readouterr().out


def test_not_finite_samples_are_counted_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = [rng.normal(3, 2, (5, 4)).astype(np.float32) for _ in range(6)]
    arrays[2][0, 0], arrays[4][1, 1] = np.nan, np.inf
    for k, a in enumerate(arrays):
        np.save(tmp_path / f"{k}.npy", a)
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
version: 1
graph: [{{op: readers.numpy, file_root: {tmp_path}, out: x}}]
outputs: {{x: x}}
""")
    x = spec_stats(spec)["outputs"]["x"]
    fine = np.stack([arrays[k] for k in (0, 1, 3, 5)])
    assert (x["not_finite"], x["samples"]) == (2, 4)
    assert x["mean"] == pytest.approx([fine.mean()], abs=1e-5)
    assert x["std"] == pytest.approx([fine.std()], abs=1e-5)
    assert (x["min"], x["max"]) == ([fine.min()], [fine.max()])


def test_sounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("soundfile")
    for k, (rate, seconds, channels) in enumerate([(8000, 0.5, 1), (16000, 0.25, 1), (8000, 1.0, 2)]):
        (tmp_path / "speech").mkdir(exist_ok=True)
        with wave.open(str(tmp_path / "speech" / f"{k}.wav"), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.full((int(rate * seconds), channels), 1000 * k, "<i2").tobytes())
    found = data_stats(tmp_path)
    assert found["sounds"]["sample_rates"] == {"8000": 2, "16000": 1}
    assert found["sounds"]["total_seconds"] == pytest.approx(1.75)
    assert found["sounds"]["seconds"]["max"] == 1.0
    assert found["sounds"]["channels"] == {1: 2, 2: 1}
    assert cli.main(["stats", str(tmp_path), "-q"]) == 0
    assert "1.75 s of audio; 2 of 8000 Hz, 1 of 16000 Hz" in capsys.readouterr().out


@pytest.mark.parametrize("sounds", [1, 70])
def test_pictures_with_sounds_before_them(sounds: int, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for k in range(sounds):  # more of them than are looked at
        with wave.open(str(tmp_path / "a" / f"{k}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(20))
    pictures = 2 * sounds + 1
    for k in range(pictures):
        Image.new("RGB", (4, 3)).save(tmp_path / "b" / f"{k}.png")
    found = data_stats(tmp_path)
    assert found["sounds"] is None
    assert found["corrupt"] == sounds  # each is named: it is no picture


def test_wrong_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stats", str(tmp_path / "none")]) == 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["stats", str(tmp_path / "empty")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
