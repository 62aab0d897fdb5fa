"""video_cuts and cut_video: clips at key frames hold the whole video's frames, and its sound."""

from __future__ import annotations

import io
import tarfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.video.cuts import CutVideo, VideoCuts
from dali_run.pipelines.job.run import REJECTS, run_job

from ...kit.files.videos import make_video

av = pytest.importorskip("av")


def encoded(*files: Path) -> Batch:
    return Batch.from_list([np.fromfile(f, np.uint8) for f in files], "", Samples.numbered(len(files)))


def cuts(file: Path, seconds: float = 0.0) -> np.ndarray:
    op, batch = VideoCuts(seconds=seconds), encoded(file)
    ctx = Context(op, "cpu", batch.samples)
    out = op.cpu(ctx, batch)
    assert not ctx.rejects, ctx.rejects
    return np.array(out.sample(0))


def clip(file: Path, cut: np.ndarray, **arguments: object) -> bytes:
    op, batch = CutVideo(**arguments), encoded(file)
    ctx = Context(op, "cpu", batch.samples)
    out = op.cpu(ctx, batch, Batch.from_list([cut], "", batch.samples))
    assert not ctx.rejects, ctx.rejects
    return bytes(out.sample(0))


def frames_of(data: bytes) -> tuple[list[np.ndarray], list[float]]:
    with av.open(io.BytesIO(data)) as container:
        shown = [(f.to_ndarray(format="rgb24"), float(f.time)) for f in container.decode(video=0)]
    return [f for f, _ in shown], [t for _, t in shown]


@pytest.mark.parametrize(
    ("name", "codec", "container"),
    [
        ("a.mp4", "libx264", "mp4"), ("a.mkv", "libx264", "mkv"), ("h.mp4", "libx265", "mp4"),
        ("v.webm", "libvpx-vp9", "webm"), ("v.mkv", "libvpx-vp9", "mp4"), ("t.ts", "libx264", "mp4"),
    ],
)  # fmt: skip
def test_clips_together_are_the_video(name: str, codec: str, container: str, tmp_path: Path) -> None:
    frames = make_video(tmp_path / name, 25, codec=codec, gop=6)
    found = cuts(tmp_path / name)
    assert len(found) >= 2
    np.testing.assert_array_equal(found[1:, 0], found[:-1, 1])
    at = 0
    for cut in found:
        data = clip(tmp_path / name, cut, container=container)
        assert data == clip(tmp_path / name, cut, container=container)
        own, times = frames_of(data)
        np.testing.assert_array_equal(own, frames[at : at + len(own)])
        assert times[0] == pytest.approx(0, abs=0.1)  # frames that are shown later than stored may move the start
        assert np.diff(times) == pytest.approx([0.04] * (len(own) - 1), abs=2e-3)
        at += len(own)
    assert at == len(frames)


def test_the_least_length(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", 50, gop=5)
    with av.open(str(tmp_path / "a.mp4")) as container:
        keys = sorted(float(p.pts * p.time_base) for p in container.demux(video=0) if p.size and p.is_keyframe)
    wanted = keys[:1]
    for key in keys:
        wanted += [key] if key - wanted[-1] >= 0.5 - 1e-9 else []
    assert 2 < len(wanted) < len(keys)
    np.testing.assert_allclose(cuts(tmp_path / "a.mp4", 0.5)[:, 0], wanted, atol=1e-9)
    assert len(cuts(tmp_path / "a.mp4", 60)) == 1


def test_key_frames_that_pictures_reach_over_are_no_place_to_cut(tmp_path: Path) -> None:
    """x265's open groups: pictures that are shown before a key frame follow it, and need the frames before."""
    with av.open(str(tmp_path / "open.mp4"), "w") as container:
        options = {"x265-params": "log-level=none:open-gop=1:keyint=8:min-keyint=8:bframes=3:scenecut=0"}
        stream = container.add_stream("libx265", rate=25, options=options)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        random = np.random.default_rng(0)
        for _ in range(40):
            picture = random.integers(0, 255, (64, 64, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())
    whole, _ = frames_of((tmp_path / "open.mp4").read_bytes())
    found = cuts(tmp_path / "open.mp4")
    own = [frames_of(clip(tmp_path / "open.mp4", cut))[0] for cut in found]
    np.testing.assert_array_equal(np.concatenate(own), whole)


def test_sound_goes_along(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "s.mp4"), "w") as container:
        video, audio = container.add_stream("libx264", rate=25), container.add_stream("aac", rate=16000)
        video.height, video.width, video.pix_fmt, video.gop_size = 48, 64, "yuv420p", 25
        for k in range(100):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), k, np.uint8), "rgb24")
            container.mux(video.encode(picture))
            tone = np.sin(np.arange(640) * (0.05 + k / 500)).astype(np.float32)[None]
            sound = av.AudioFrame.from_ndarray(tone, "fltp", "mono")
            sound.sample_rate, sound.pts, sound.time_base = 16000, 640 * k, Fraction(1, 16000)
            container.mux(audio.encode(sound))
        container.mux(video.encode())
        container.mux(audio.encode())
    found = cuts(tmp_path / "s.mp4", 1)
    assert len(found) == 4
    lengths = []
    for cut in found:
        with av.open(io.BytesIO(clip(tmp_path / "s.mp4", cut))) as container:
            lengths.append(sum(f.samples for f in container.decode(audio=0)) / 16000)
    assert lengths == pytest.approx((found[:, 1] - found[:, 0]).tolist(), abs=0.15)
    with av.open(io.BytesIO(clip(tmp_path / "s.mp4", found[1], sound=False))) as container:
        assert not container.streams.audio


def test_a_job_writes_clips_as_samples(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "0"
    folder.mkdir(parents=True)
    frames = {name: make_video(folder / name, 20 + k, gop=5) for k, name in enumerate(("a.mp4", "b.mp4"))}
    (folder / "c.mp4").write_bytes(b"no video " * 50)
    spec = Path(__file__).parents[3] / "configs" / "video_cuts.yaml"
    done = run_job(
        spec,
        {"data": str(tmp_path / "in"), "out": str(tmp_path / "out"), "graph.video_cuts.seconds": "0.2",
         "on_error.max_errors": "50%"},
        device="cpu",
    )  # fmt: skip
    assert done.exit_code == REJECTS, done.message
    made: dict[str, list[np.ndarray]] = {}
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".mp4"):
                    inside = tar.extractfile(member)
                    assert inside is not None
                    made.setdefault(Path(member.name).name.split("-")[0], []).extend(frames_of(inside.read())[0])
    assert sorted(made) == ["a", "b"]
    for name, own in made.items():
        np.testing.assert_array_equal(own, frames[f"{name}.mp4"])
