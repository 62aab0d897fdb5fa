"""decoders.video against frames decoded one after the other, and what DALI 2.4 does behind the end of a video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import coerce, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.video.decoders import Video

from ...kit.files.videos import make_video

pytest.importorskip("av")
KINDS = [
    ("a.mp4", {"codec": "libx264"}), ("long.mkv", {"codec": "libx264", "gop": 60}), ("a.webm", {"codec": "libvpx"}),
    ("a.avi", {"codec": "mjpeg", "pixels": "yuvj420p"}), ("m.avi", {"codec": "mpeg4"}),
    ("raw.264", {"codec": "libx264"}),
    ("vfr.mkv", {"codec": "libx264", "times": [0, 40, 80, 200, 240, 300, 310, 400, 520, 560]}),
]  # fmt: skip


def decode(files: list[Path], **arguments: Any) -> tuple[Batch, list[Any]]:
    op = Video(**{k: coerce(parameter(Video, k), v) for k, v in arguments.items()})
    op.check()
    encoded = [np.fromfile(f, np.uint8) for f in files]
    batch = Batch.from_list(encoded, "", Samples.numbered(len(files)))
    ctx = Context(op, "cpu", batch.samples)
    return op.cpu(ctx, batch), ctx.rejects


@pytest.mark.parametrize(("name", "how"), KINDS)
def test_frames_are_those_of_decoding_from_the_start(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    count = len(how.get("times", range(70)))
    frames = make_video(tmp_path / name, count, **how)
    out, rejects = decode([tmp_path / name])
    assert not rejects
    assert out.layout == "FHWC"
    np.testing.assert_array_equal(out.sample(0), frames)
    for some in ([0], [count - 1], [count - 1, 0, 3, 3], [5, 6, 2, count // 2]):
        out, rejects = decode([tmp_path / name], frames=some)
        assert not rejects
        np.testing.assert_array_equal(out.sample(0), [frames[n] for n in some])
    out, _ = decode([tmp_path / name], start_frame=2, stride=3)
    np.testing.assert_array_equal(out.sample(0), frames[2::3])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", [7, 8, 9]),
        ("constant", [7, 8, 9, -1, -1, -1]),
        ("edge", [7, 8, 9, 9, 9, 9]),
        ("repeat", [7, 8, 9, 9, 9, 9]),
        ("reflect_1001", [7, 8, 9, 9, 8, 7]),
        ("symmetric", [7, 8, 9, 9, 8, 7]),
        ("reflect_101", [7, 8, 9, 8, 7, 6]),
        ("reflect", [7, 8, 9, 8, 7, 6]),
    ],
)
def test_behind_the_end_as_dali(mode: str, expected: list[int], tmp_path: Path) -> None:
    frames = make_video(tmp_path / "a.mp4", 10)
    filled = np.full_like(frames[0], 7)
    out, _ = decode([tmp_path / "a.mp4"], start_frame=7, sequence_length=6, pad_mode=mode, fill_value=7)
    np.testing.assert_array_equal(out.sample(0), [frames[n] if n >= 0 else filled for n in expected])
    out, _ = decode([tmp_path / "a.mp4"], frames=[0, 12, 9], pad_mode="reflect_101")
    np.testing.assert_array_equal(out.sample(0), [frames[n] for n in (0, 6, 9)])
    out, _ = decode([tmp_path / "a.mp4"], end_frame=14)
    assert out.sample(0).shape[0] == 14
    assert not out.sample(0)[10:].any()


def test_bad_files_cost_themselves(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "good.mp4", 30)
    whole = (tmp_path / "good.mp4").read_bytes()
    (tmp_path / "half.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_bytes(b"no video " * 50)
    import wave

    with wave.open(str(tmp_path / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(800))
    names = ["half.mp4", "good.mp4", "empty.mp4", "text.mp4", "sound.wav"]
    out, rejects = decode([tmp_path / n for n in names])
    assert sorted(r.slot for r in rejects) == [0, 2, 3, 4]
    assert {r.slot: r.code for r in rejects}[2] == "truncated"
    assert "no video stream" in {r.slot: r.message for r in rejects}[4]
    np.testing.assert_array_equal(out.sample(1), frames)
    _, rejects = decode([tmp_path / "good.mp4"], start_frame=30)
    assert [(r.code, r.message) for r in rejects] == [
        ("out_of_bounds", "start_frame is 30, and the video has 30 frames")
    ]
    _, rejects = decode([tmp_path / "good.mp4"], max_pixels=1000)
    assert [r.code for r in rejects] == ["too_large"]


def test_each_sample_has_arguments_of_its_own(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "a.mp4", 20)
    op = Video(sequence_length=3, per_sample=frozenset(("start_frame",)))
    encoded = Batch.from_list([np.fromfile(tmp_path / "a.mp4", np.uint8)] * 3, "", Samples.numbered(3))
    starts = Batch.from_dense(np.array([4, -1, 11], np.int32), "", encoded.samples)
    ctx = Context(op, "cpu", encoded.samples, {"start_frame": starts})
    out = op.cpu(ctx, encoded)
    assert [(r.slot, r.code) for r in ctx.rejects] == [(1, "bad_argument")]
    for i, start in ((0, 4), (2, 11)):
        np.testing.assert_array_equal(out.sample(i), frames[start : start + 3])


def test_contradictions_are_refused() -> None:
    with pytest.raises(SpecError, match="frames excludes"):
        Video(frames=(1,), stride=2).check()
    with pytest.raises(SpecError, match="exclude each other"):
        Video(sequence_length=1, end_frame=2).check()
