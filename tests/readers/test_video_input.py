"""experimental.inputs.video: videos that a program feeds, sequence by sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run.pipeline import Pipeline, pipeline_def

from ..kit.files.videos import make_video

pytest.importorskip("av")


def pipeline(batch_size: int = 2, **arguments: Any) -> Pipeline:
    @pipeline_def(batch_size=batch_size, num_threads=2, device_id=None)
    def made() -> Any:
        return fn.experimental.inputs.video(name="video", **{"sequence_length": 4, **arguments})

    pipe: Pipeline = made()
    pipe.build()
    return pipe


def batches(pipe: Pipeline, count: int) -> list[list[np.ndarray]]:
    return [[np.array(out.at(i)) for i in range(len(out))] for (out,) in (pipe.run() for _ in range(count))]


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("v.webm", "libvpx-vp9"), ("hidden.webm", "libvpx"), ("m.avi", "mjpeg")]
)
@pytest.mark.parametrize("policy", ["partial", "pad"])
def test_sequences_are_those_of_dali(name: str, codec: str, policy: str, tmp_path: Path) -> None:
    """21 frames, by 4, two sequences a batch: DALI 2.4 gives three batches, the last sequence of 1 frame, or of 4 with
    black ones."""
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    frames = make_video(tmp_path / name, 21, codec=codec, pixels=pixels)
    pipe = pipeline(last_sequence_policy=policy)
    pipe.feed_input("video", [np.fromfile(tmp_path / name, np.uint8)])
    made = batches(pipe, 3)
    assert [len(b) for b in made] == [2, 2, 2]
    sequences = [s for b in made for s in b]
    for k, sequence in enumerate(sequences[:5]):
        np.testing.assert_array_equal(sequence, frames[4 * k : 4 * k + 4])
    np.testing.assert_array_equal(sequences[5][:1], frames[20:])
    assert sequences[5].shape[0] == (1 if policy == "partial" else 4)
    assert not sequences[5][1:].any()
    with pytest.raises(Exception, match="no data"):
        pipe.run()


def test_the_next_video_follows_in_a_batch_of_its_own(tmp_path: Path) -> None:
    first = make_video(tmp_path / "a.mp4", 21)
    second = make_video(tmp_path / "b.mp4", 7, size=(32, 48), gop=3)
    pipe = pipeline(batch_size=4)
    for name in ("a.mp4", "b.mp4"):
        pipe.feed_input("video", [np.fromfile(tmp_path / name, np.uint8)])
    made = batches(pipe, 3)
    assert [[len(s) for s in b] for b in made] == [[4, 4, 4, 4], [4, 1], [4, 3]]
    np.testing.assert_array_equal(np.concatenate(made[0] + made[1]), first)
    np.testing.assert_array_equal(np.concatenate(made[2]), second)
    pipe.feed_input("video", np.fromfile(tmp_path / "b.mp4", np.uint8)[None])
    np.testing.assert_array_equal(np.concatenate(batches(pipe, 1)[0]), second)


def test_what_is_no_video_is_said_where_it_is_fed(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", 5)
    data = np.fromfile(tmp_path / "a.mp4", np.uint8)
    pipe = pipeline()
    for wrong, words in (
        ([np.zeros(100, np.uint8)], "not a video"),
        ([data, data], "one video at a time"),
        ([data.astype(np.int32)], "uint8"),
        ([np.zeros(0, np.uint8)], "empty"),
    ):
        with pytest.raises(Exception, match=words):
            pipe.feed_input("video", wrong)
    pipe.feed_input("video", [data])
    assert [len(s) for s in batches(pipe, 1)[0]] == [4, 1]


def test_damage_costs_its_sequences(tmp_path: Path) -> None:
    """The sequences around the damage are good, and their frames are the right ones."""
    frames = make_video(tmp_path / "a.ts", 40, gop=8)
    data = np.fromfile(tmp_path / "a.ts", np.uint8)
    import av

    with av.open(str(tmp_path / "a.ts")) as container:
        packets = [(p.pos, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]
    at = packets[18][0]
    hurt = data.copy()
    hurt[at + 20 : at + 180] = 255

    @pipeline_def(batch_size=2, num_threads=2, device_id=None, on_error="skip")
    def made() -> Any:
        return fn.experimental.inputs.video(name="video", sequence_length=4)

    pipe = made()
    pipe.build()
    pipe.feed_input("video", [hurt])
    seen = [np.array(out.at(i)) for (out,) in (pipe.run() for _ in range(5)) for i in range(len(out))]
    whole = {np.concatenate(frames[k : k + 4]).tobytes() for k in range(0, 40, 4)}
    good = sum(s.reshape(-1, *s.shape[2:]).tobytes() in whole for s in seen)
    assert good >= 4
    np.testing.assert_array_equal(seen[0], frames[:4])


def test_with_operators_after_it(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "a.mp4", 12)

    @pipeline_def(batch_size=3, num_threads=2, device_id=None)
    def made() -> Any:
        video = fn.experimental.inputs.video(name="video", sequence_length=4)
        return video, fn.crop(video, crop=(16, 16))

    pipe = made()
    pipe.build()
    pipe.feed_input("video", [np.fromfile(tmp_path / "a.mp4", np.uint8)])
    video, cropped = pipe.run()
    assert [tuple(s) for s in cropped.shape()] == [(4, 16, 16, 3)] * 3
    np.testing.assert_array_equal(np.array(video.at(2)), frames[8:])
    np.testing.assert_array_equal(np.array(cropped.at(1)), np.array(frames[4:8])[:, 16:32, 24:40])


def test_debug_mode(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "a.mp4", 8)

    @pipeline_def(batch_size=2, num_threads=2, device_id=None, debug=True)
    def made() -> Any:
        return fn.experimental.inputs.video(name="video", sequence_length=4)

    pipe = made()
    pipe.build()
    pipe.feed_input("video", [np.fromfile(tmp_path / "a.mp4", np.uint8)])
    (out,) = pipe.run()
    np.testing.assert_array_equal(np.array(out.at(1)), frames[4:])


def test_frames_travel_to_a_gpu(tmp_path: Path) -> None:
    from ..kit.fake_cupy import faked

    frames = make_video(tmp_path / "a.mp4", 10)
    with faked(1, memory=True):

        @pipeline_def(batch_size=2, num_threads=2, device_id=0)
        def made() -> Any:
            return fn.experimental.inputs.video(name="video", sequence_length=4, device="mixed")

        pipe = made()
        pipe.build()
        pipe.feed_input("video", [np.fromfile(tmp_path / "a.mp4", np.uint8)])
        sequences = []
        for _ in range(2):
            (out,) = pipe.run()
            assert type(out).__name__ == "TensorListGPU"
            host = out.as_cpu()
            sequences += [np.array(host.at(i)) for i in range(len(host))]
        pipe.close()
    assert [len(s) for s in sequences] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate(sequences), frames)
