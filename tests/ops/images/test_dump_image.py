"""dump_image: what it writes, read by Pillow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.context import Context
from dali_run.ops.errors import JobError, SpecError

from ...kit.golden import batch_of, operator


def test_pictures_are_written_as_they_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    colour = np.random.default_rng(1).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    op = operator("dump_image", suffix="seen")
    for first in (0, 2):
        batch = batch_of([colour, colour[:3]], "HWC")
        samples = dataclasses.replace(batch.samples, position=batch.samples.position + first)
        assert op.cpu(Context(op, "cpu", samples), batch.replace(samples=samples)).data is batch.data
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0-seen-0.ppm",
        "0-seen-2.ppm",
        "1-seen-0.ppm",
        "1-seen-2.ppm",
    ]
    np.testing.assert_array_equal(np.asarray(Image.open("0-seen-2.ppm")), colour)
    planes = batch_of([np.ascontiguousarray(colour.transpose(2, 0, 1)[:1])], "CHW")
    op = operator("dump_image")
    op.cpu(Context(op, "cpu", planes.samples), planes)
    np.testing.assert_array_equal(np.asarray(Image.open("0--0.ppm")), colour[:, :, 0])
    two = batch_of([colour[:, :, :2].copy()], "HWC")
    ctx = Context(op, "cpu", two.samples)
    op.cpu(ctx, two)
    assert [r.code for r in ctx.rejects] == ["bad_shape"]


def test_names_stay_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="part of a file's name"):
        operator("dump_image", suffix="../x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0-x-0.ppm").mkdir()
    batch = batch_of([np.zeros((2, 2, 3), np.uint8)], "HWC")
    op = operator("dump_image", suffix="x")
    with pytest.raises(JobError, match="cannot write"):
        op.cpu(Context(op, "cpu", batch.samples), batch)
