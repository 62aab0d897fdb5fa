"""benchmarks/natural.py and gate.py: images in natural sizes, no two files alike, and what fails the gate."""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import gate, natural


def refused(*arguments: object) -> Any:
    raise AssertionError(f"dali-run {arguments} is not needed")


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    colours = [Image.radial_gradient("L"), Image.linear_gradient("L"), Image.effect_noise((256, 256), 40)]
    path = tmp_path_factory.mktemp("photo") / "photo.jpg"
    Image.merge("RGB", colours).save(path, quality=90)
    return path


def test_sizes_are_those_of_imagenet() -> None:
    megapixels = np.sort(natural.sizes(1000)) / 1e6
    assert np.quantile(megapixels, (0.05, 0.5, 0.9, 0.95, 0.99)) == pytest.approx(
        (0.05, 0.19, 0.27, 0.43, 0.88), rel=0.05
    )
    assert 3 < megapixels[-1] < 3.84
    assert natural.sizes(1000) == natural.sizes(1000)


@pytest.mark.parametrize("kind", ["baseline", "progressive", "png", "webp", "cmyk", "thumbnail"])
def test_a_variant_is_of_its_kind_and_has_about_its_size(photo: Path, kind: str) -> None:
    one, other = (Image.open(io.BytesIO(natural.encoded(kind, photo, 40_000, k))) for k in (0, 1))
    assert one.format == {"png": "PNG", "webp": "WEBP"}.get(kind, "JPEG")
    assert one.mode == ("CMYK" if kind == "cmyk" else "RGB")
    assert bool(one.info.get("progressive")) == (kind == "progressive")
    assert one.width * one.height == (1024 if kind == "thumbnail" else pytest.approx(40_000, rel=0.05))
    assert one.tobytes() != other.tobytes()


@pytest.mark.parametrize("kind", ["baseline", "png"])
def test_a_changed_copy_differs_and_is_valid(photo: Path, kind: str) -> None:
    body = natural.encoded(kind, photo, 20_000, 0)
    copies = {natural.changed(body, k) for k in range(100)}
    assert len(copies) == 100
    first = np.asarray(Image.open(io.BytesIO(body)), int)
    for copy in sorted(copies)[:8]:
        image = Image.open(io.BytesIO(copy))
        image.load()
        assert np.abs(np.asarray(image, int) - first).mean() < 8


def test_a_mix_has_its_shares_and_no_two_files_are_alike(tmp_path: Path, photo: Path) -> None:
    data = natural.DataSets(tmp_path, [photo], 3_000_000, refused)
    files = data.files("mix")
    assert len({path.read_bytes() for path in files}) == len(files)
    kinds = Counter(Image.open(io.BytesIO(path.read_bytes())).format for path in files)
    assert kinds["PNG"] / len(files) == pytest.approx(0.06, abs=0.04)
    assert data.files("mix") == files


def test_a_corpus_is_the_same_every_time(tmp_path: Path, photo: Path) -> None:
    one, other = (natural.mixed_corpus(tmp_path / name, [photo], None, 20) for name in "ab")
    bodies = [[path.read_bytes() for path in sorted(place.iterdir())] for place in (one, other)]
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == 1 + len(natural.MIX) + 20


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        ({"val": {"rate": 98.0}}, False),
        ({"val": {"rate": 96.0}}, True),
        ({"val": {"error": "it failed"}}, True),
        ({"exact": {"sha256": "a", "samples": 2, "rejects": 0, "lines": []}}, False),
        ({"exact": {"sha256": "b", "samples": 2, "rejects": 0, "lines": []}}, True),
    ],
)
def test_a_row_that_lost_or_another_hash_fails_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], now: dict[str, dict[str, Any]], lost: bool
) -> None:
    class Measured(gate.Gate):
        def __init__(self) -> None:
            self.args, self.device = argparse.Namespace(dali=False, compare="", data=tmp_path), "gpu"

        def measure(self, row: str, library: str, package: Path, device: str) -> dict[str, Any]:
            return dict(now[row])

    kept = {"rows": {"val": {"dali_run": {"rate": 100.0}}, "exact": {"dali_run": {"sha256": "a"}}}}
    target = tmp_path / "build" / "gate.json"
    assert gate.full(Measured(), list(now), kept, target, {"kind": "test"}) == lost
    assert set(json.loads(target.read_text())["rows"]) == set(now)
    assert (next(iter(now)) in capsys.readouterr().out.splitlines()[-1]) == lost
