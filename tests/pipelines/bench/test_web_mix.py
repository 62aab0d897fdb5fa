"""The data sets of benchmarks/jobs/web_mix.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.jobs.web_mix import data_set


def test_a_data_set_is_made_once_and_again_after_a_run_that_was_ended(tmp_path: Path) -> None:
    pictures = []
    for k in range(2):
        pixels = np.random.default_rng(k).integers(0, 256, (6, 7, 3), np.uint8)
        Image.fromarray(pixels).resize((60, 50)).save(tmp_path / f"{k}.png")
        pictures.append(tmp_path / f"{k}.png")
    place, counts = data_set("cmyk", tmp_path / "sets", pictures, 1 << 20, 2)
    files = {p: p.stat().st_mtime_ns for p in (place / "0").iterdir()}
    assert counts == {"cmyk": len(files)}
    assert data_set("cmyk", tmp_path / "sets", pictures, 1 << 20, 2) == (place, counts)
    assert {p: p.stat().st_mtime_ns for p in (place / "0").iterdir()} == files
    other, _ = data_set("cmyk", tmp_path / "sets", pictures, 1 << 20, 1)
    assert other != place
    (tmp_path / "sets" / f"{place.name}.json").unlink()  # as where it was ended
    next(iter(files)).unlink()
    assert data_set("cmyk", tmp_path / "sets", pictures, 1 << 20, 2) == (place, counts)
    assert len(list((place / "0").iterdir())) == len(files)
