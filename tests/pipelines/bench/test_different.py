"""Gigabytes of different files: no two are alike, and each is of the kind of its original."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from benchmarks.data.different import data_files, variants


@pytest.mark.parametrize("options", [
    {"subsampling": 0, "quality": 92}, {"subsampling": 2, "quality": 60}, {"subsampling": 1}, {"gray": True},
    {"cmyk": True},
], ids=str)  # fmt: skip
def test_variants_are_of_the_kind_of_their_original(options: dict[str, Any], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    image = Image.fromarray(pixels).resize((120, 90), Image.Resampling.BICUBIC)
    gray, cmyk = options.pop("gray", False), options.pop("cmyk", False)
    image.convert("L" if gray else "CMYK" if cmyk else "RGB").save(tmp_path / "a.jpg", **options)
    made = variants(tmp_path / "a.jpg", 0, 40)
    assert len(set(made)) == 40
    original = Image.open(io.BytesIO((tmp_path / "a.jpg").read_bytes()))
    for data in made:
        found = Image.open(io.BytesIO(data))
        assert 0.7 * 120 < found.width <= 120
        assert 0.7 * 90 < found.height <= 90
        if not cmyk:
            assert found.mode == original.mode
            assert found.quantization == original.quantization
            assert JpegImagePlugin.get_sampling(found) == JpegImagePlugin.get_sampling(original)
    assert variants(tmp_path / "a.jpg", 7, 3) == made[7:10]


def test_without_gigabytes_the_files_themselves_are_taken(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.jpg"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    assert data_files(tmp_path, tmp_path / "scratch", 0) == [tmp_path / "a.jpg", tmp_path / "b.jpg"]
    assert not (tmp_path / "scratch").exists()
