"""Videos in `inspect`, and on pages: what they are, and contact sheets of their frames."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.errors import SampleError
from dali_run.ops.video.glimpse import glimpse, is_video
from dali_run.pipelines.show.pictures import as_picture
from dali_run.pipelines.show.terminal import value_in_words
from dali_run.pipelines.tools.datasets import inspect_data
from dali_run.pipelines.tools.thumbnails import thumbnails

from ...kit.files.videos import make_video

pytest.importorskip("av")


@pytest.mark.parametrize(
    ("name", "codec", "pixels"),
    [("a.mp4", "libx264", "yuv420p"), ("v.webm", "libvpx-vp9", "yuv420p"), ("m.avi", "mjpeg", "yuvj420p"),
     ("h.webm", "libvpx", "yuv420p"), ("t.ts", "libx264", "yuv420p")],
)  # fmt: skip
def test_a_glimpse_is_small_frames_at_even_distances(name: str, codec: str, pixels: str, tmp_path: Path) -> None:
    frames = make_video(tmp_path / name, 40, codec=codec, pixels=pixels, gop=20)
    data = (tmp_path / name).read_bytes()
    assert is_video(data)
    facts, small = glimpse(data, 5, 32)
    assert (facts["width"], facts["height"], facts["frames"]) == (64, 48, 40)
    assert facts["seconds"] == pytest.approx(1.6, abs=0.05)
    assert len(small) == 5
    shrunk = [np.asarray(Image.fromarray(f).resize((32, 24), Image.Resampling.BOX)) for f in frames]
    at = [next(k for k, f in enumerate(shrunk) if (f == one).all()) for one in small]
    assert at == [0, 10, 20, 29, 39] or at == [0, 10, 20, 30, 39]


def test_key_frames_are_preferred(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "a.mp4", 60, gop=5)
    import av

    with av.open(str(tmp_path / "a.mp4")) as container:
        keys = {n for n, f in enumerate(container.decode(video=0)) if f.key_frame}
    _, small = glimpse((tmp_path / "a.mp4").read_bytes(), 4, 64)
    found = [next(k for k, f in enumerate(frames) if (f == one).all()) for one in small]
    assert set(found) <= keys
    assert found == sorted(found)


def test_pictures_are_no_videos() -> None:
    for form in ("JPEG", "PNG", "AVIF", "WEBP"):
        out = io.BytesIO()
        try:
            Image.new("RGB", (64, 48)).save(out, form)
        except (KeyError, OSError):  # a Pillow without it
            continue
        assert not is_video(out.getvalue()), form
    with pytest.raises(SampleError):
        glimpse(b"\0\0\0\x20ftypM4A " + bytes(100))


def test_inspect_tells_of_videos_and_draws_them(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    make_video(folder / "v.mp4", 30)
    whole = (folder / "v.mp4").read_bytes()
    (folder / "w.mp4").write_bytes(whole[:200])
    seen: list[tuple[int, str, Image.Image]] = []
    found = inspect_data(tmp_path / "in", 5, out=tmp_path / "out", saved_images=seen)
    fields = [next(iter(s["fields"].values())) for s in found["samples"]]
    assert fields[0]["what"] == "video"
    assert value_in_words(fields[0]).startswith("video 64 x 48 h264, 30 frames, 1.2 s")
    assert fields[1]["what"] == "bytes"
    assert [n for n, _, _ in seen] == [0]
    assert seen[0][2].size == (4 * 65 - 1, 2 * 49 - 1)
    assert list((tmp_path / "out").iterdir())


def test_thumbnails_of_videos(tmp_path: Path) -> None:
    make_video(tmp_path / "v.mp4", 30)
    whole = (tmp_path / "v.mp4").read_bytes()
    made = thumbnails([whole, whole[:300]])
    assert made[0] is not None
    assert Image.open(io.BytesIO(made[0])).size[0] == 192
    assert not made[1]


def test_sequences_are_contact_sheets() -> None:
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (20, 30, 40, 3), np.uint8)
    sheet = as_picture(frames, "FHWC")
    assert sheet is not None
    assert sheet.size == (4 * 41 - 1, 2 * 31 - 1)
    np.testing.assert_array_equal(np.asarray(sheet)[:30, :40], frames[0])
    np.testing.assert_array_equal(np.asarray(sheet)[31:, 3 * 41 :], frames[19])
    other = as_picture(frames.transpose(0, 3, 1, 2).astype(np.float32) / 255, "FCHW")
    assert other is not None
    assert np.abs(np.asarray(other).astype(int) - np.asarray(sheet)).max() <= 1
    assert as_picture(frames[:0], "FHWC") is None
