"""readers.video_resize against readers.video and resize, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, types
from dali_run.ops.base import coerce, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.images.resize import Resize
from dali_run.ops.types import DALIDataType
from dali_run.readers.videos.reader import Video
from dali_run.readers.videos.video_resize import VideoResize
from tests.kit.files.videos import make_video
from tests.kit.readers import fetch, open_reader

pytest.importorskip("av")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    (root / "c0").mkdir()
    make_video(root / "c0" / "a.mkv", 10)
    make_video(root / "c0" / "b.mkv", 7, size=(40, 96))
    return root


def made(cls: Any, **arguments: Any) -> Any:
    op = cls(**{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})
    op.check()
    return op


READ = {"sequence_length": 3, "step": 2, "enable_frame_num": "sequence", "enable_timestamps": True}


@pytest.mark.parametrize(
    ("reading", "resizing"),
    [
        ({}, {"resize_shorter": 32}),
        ({"pad_sequences": True}, {"size": [24, 30], "interp_type": "INTERP_CUBIC"}),
        ({"dtype": "FLOAT"}, {"resize_x": -50, "mode": "stretch", "antialias": False}),
        ({"dtype": "FLOAT", "normalized": True}, {"resize_longer": 20}),
        ({"image_type": "YCbCr"}, {"size": 16, "roi_start": [0.25, 0], "roi_end": [1, 0.5], "roi_relative": True}),
    ],
)
def test_it_is_the_reader_and_resize(root: Path, reading: dict[str, Any], resizing: dict[str, Any]) -> None:
    reader = made(Video, file_root=str(root), **READ, **reading)
    both = made(VideoResize, file_root=str(root), **READ, **reading, **resizing)
    source, other = open_reader(reader), open_reader(both)
    every = range(len(source))
    (frames, *facts), rejects = fetch(reader, source, every)
    (resized, *same), more = fetch(both, other, every)
    assert not rejects
    assert not more
    op = made(Resize, **resizing)
    expected = op.cpu(Context(op, "cpu", frames.samples), frames)
    assert resized.layout == "FHWC"
    assert resized.dtype == (np.float32 if reading.get("dtype") == "FLOAT" else np.uint8)
    for k in every:
        np.testing.assert_array_equal(resized.sample(k), expected.sample(k))
    for mine, theirs in zip(same, facts, strict=True):
        assert [a.tolist() for a in mine] == [a.tolist() for a in theirs]
    declared = both.infer()
    assert declared[0].dtype is (DALIDataType.FLOAT if reading.get("dtype") == "FLOAT" else DALIDataType.UINT8)
    assert len(declared) == both.num_outputs


def test_values_of_the_older_reader(root: Path) -> None:
    def read(**arguments: Any) -> Any:
        op = made(Video, filenames=[str(root / "c0" / "a.mkv")], sequence_length=2, **arguments)
        return fetch(op, open_reader(op), [0])[0][0].sample(0)

    plain = read()
    np.testing.assert_array_equal(read(dtype="FLOAT"), plain.astype(np.float32))
    np.testing.assert_array_equal(read(dtype="FLOAT", normalized=True), plain.astype(np.float32) / np.float32(255))
    y, cb, cr = np.moveaxis(read(image_type="YCbCr").astype(float), -1, 0)  # of a stream of limited range, BT.601
    red = 1.164383 * (y - 16) + 1.596027 * (cr - 128)
    blue = 1.164383 * (y - 16) + 2.017232 * (cb - 128)
    assert np.abs(np.clip(red, 0, 255) - plain[..., 0]).mean() < 4
    assert np.abs(np.clip(blue, 0, 255) - plain[..., 2]).mean() < 4


def test_bad_files_are_rejects_of_their_own(root: Path) -> None:
    (root / "bad.mkv").write_bytes(b"no video at all " * 20)
    op = made(VideoResize, filenames=[str(root / "bad.mkv"), str(root / "c0" / "a.mkv")], sequence_length=5,
              resize_shorter=24)  # fmt: skip
    source = open_reader(op)
    (video,), rejects = fetch(op, source, range(3))
    assert [(r.slot, r.code) for r in rejects] == [(0, "unsupported")]
    assert video.sample(1).shape == video.sample(2).shape == (5, 24, 32, 3)


def test_each_sequence_has_a_size_of_its_own(root: Path) -> None:
    op = VideoResize(filenames=(str(root / "c0" / "a.mkv"),), sequence_length=5, per_sample=frozenset(("size",)))
    op.check()
    source = open_reader(op)
    samples = Samples.numbered(2)
    sizes = Batch.from_dense(np.array([[8, 12], [30, 20]], np.float32), "", samples)
    ctx = Context(op, "cpu", samples, {"size": sizes}, source=source)
    (video,) = op.cpu(ctx)
    assert not ctx.rejects
    assert [v.shape for v in video] == [(5, 8, 12, 3), (5, 30, 20, 3)]


def test_in_a_pipeline_of_dalis(root: Path) -> None:
    @pipeline_def(batch_size=2, num_threads=2, device_id=None)
    def pipe() -> Any:
        return fn.readers.video_resize(filenames=[str(root / "c0" / "a.mkv")], sequence_length=4, size=(20, 24),
                                       dtype=types.FLOAT)  # fmt: skip

    p = pipe()
    (video,) = p.run()
    assert video.as_array().shape == (2, 4, 20, 24, 3)
    p.close()


@pytest.mark.parametrize("debug", [False, True])
def test_dalis_programs_ask_for_a_gpu(root: Path, debug: bool) -> None:
    """DALI reads videos on a GPU alone; here the CPU reads, and the outputs travel."""

    @pipeline_def(batch_size=2, num_threads=2, device_id=None, debug=debug)
    def pipe() -> Any:
        video, label = fn.readers.video(filenames=[str(root / "c0" / "a.mkv")], labels=[7], sequence_length=4,
                                        device="gpu", name="Reader")  # fmt: skip
        assert video.device == label.device == "gpu" or debug
        return fn.flip(video), label

    p = pipe()
    video, label = p.run()
    assert video.as_cpu().as_array().shape == (2, 4, 48, 64, 3)
    assert label.as_cpu().as_array().tolist() == [[7], [7]]
    if not debug:
        assert p.epoch_size("Reader") == 2
    p.close()


def test_what_is_refused() -> None:
    with pytest.raises(SpecError, match="say the size in one way"):
        made(VideoResize, filenames=["a"], sequence_length=3)
    with pytest.raises(SpecError, match="needs dtype: FLOAT"):
        made(Video, filenames=["a"], sequence_length=3, normalized=True)
    with pytest.raises(SpecError, match="dtype must be UINT8 or FLOAT"):
        made(Video, filenames=["a"], sequence_length=3, dtype="INT16")
    with pytest.raises(SpecError, match="RGB or YCbCr"):
        made(Video, filenames=["a"], sequence_length=3, image_type="GRAY")
