"""readers.sequence: which frames belong together (as DALI 2.4 has it), pixels, and frames that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError
from dali_run.ops.types import DALIImageType
from dali_run.readers.sequence import Sequence


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    for name, frames, first in (("a", 6, 0), ("b", 3, 100), ("c", 5, 200)):
        (tmp_path / name).mkdir()
        for k in range(frames):
            Image.fromarray(np.full((4, 5, 3), 10 * k + first, np.uint8)).save(tmp_path / name / f"{k:03d}.png")
    return tmp_path


def read(folder: Path, **how: Any) -> tuple[Batch, Context]:
    reader = Sequence(file_root=str(folder), **how)
    reader.check()
    source = reader.open()
    try:
        ctx = Context(reader, "cpu", Samples.numbered(len(source)), source=source)
        (out,) = reader.cpu(ctx)
        return out, ctx
    finally:
        source.close()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"sequence_length": 2, "step": 3, "stride": 2}, [[0, 20], [30, 50], [100, 120], [200, 220]]),
        ({"sequence_length": 3}, [[0, 10, 20], [10, 20, 30], [20, 30, 40], [30, 40, 50], [100, 110, 120],
                                  [200, 210, 220], [210, 220, 230], [220, 230, 240]]),
        ({"sequence_length": 4, "step": 4, "stride": 1}, [[0, 10, 20, 30], [200, 210, 220, 230]]),
    ],
)  # fmt: skip
def test_sequences_of_dali(streams: Path, how: dict[str, int], wanted: list[list[int]]) -> None:
    out, ctx = read(streams, **how)
    assert out.layout == "FHWC"
    assert not ctx.rejects
    assert [x[:, 0, 0, 0].tolist() for x in out] == wanted
    assert all(x.shape == (how["sequence_length"], 4, 5, 3) and (x == x[:, :1, :1, :1]).all() for x in out)


def test_gray(streams: Path) -> None:
    out, _ = read(streams, sequence_length=3, image_type=DALIImageType.GRAY)
    assert out.sample(0).shape == (3, 4, 5, 1)


def test_bad_frames_cost_their_sequences(streams: Path) -> None:
    (streams / "b" / "001.png").write_bytes(b"no picture")
    Image.fromarray(np.zeros((9, 5, 3), np.uint8)).save(streams / "c" / "002.png")
    out, ctx = read(streams, sequence_length=3, step=3)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(2, "not_an_image"), (3, "bad_shape")]
    assert "frame 1 (b/001.png)" in ctx.rejects[0].message
    assert out.sample(1)[:, 0, 0, 0].tolist() == [30, 40, 50]


def test_streams_that_are_too_short(streams: Path) -> None:
    with pytest.raises(JobError, match="7 frames"):
        read(streams, sequence_length=7)
