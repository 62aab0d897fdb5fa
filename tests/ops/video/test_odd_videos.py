"""Files that are odd or broken, by the CPU and through a stand-in for NVDEC, by the decoder and by the reader: good
frames, or one reject that says why, and the good files beside them stay."""

from __future__ import annotations

import struct
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.video import nvdec
from dali_run.ops.video.decoders import Video

from ...kit.fake_cupy import faked
from ...kit.files.videos import make_video
from ...kit.readers import fetch
from ...kit.video_batches import by_nvdec, opened

av = pytest.importorskip("av")
FRAMES = 12
TIMES = [0, 40, 80, 200, 240, 300, 310, 400, 520, 560, 900, 940]


def encoded(path: Path, options: dict[str, str], streams: int = 1, sound: bool = False) -> None:
    """H.264 whose frames' red is 20 times their number, and more of each stream."""
    with av.open(str(path), "w") as container:
        video = [container.add_stream("libx264", rate=25, options=options) for _ in range(streams)]
        noise = container.add_stream("aac", rate=16000) if sound else None
        for k, stream in enumerate(video):
            stream.height, stream.width, stream.pix_fmt = 48 + 16 * k, 64, "yuv420p"
        for i in range(FRAMES):
            for k, stream in enumerate(video):
                picture = np.full((48 + 16 * k, 64, 3), (i * 20, 90 * k, 40), np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            if noise is not None:
                frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
                frame.sample_rate, frame.pts = 16000, 1024 * i
                container.mux(noise.encode(frame))
        for stream in [*video, *([] if noise is None else [noise])]:
            container.mux(stream.encode())


def sound(path: Path) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(2000))


def turned(path: Path) -> None:
    """The file asks players to turn it by 90 degrees: its frames come as they are stored."""
    make_video(path, FRAMES)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    data[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 48 << 16, 0, 1 << 30)
    path.write_bytes(data)


def half(path: Path) -> None:
    make_video(path, FRAMES)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated.mp4": (half, "not a video|are there"),
    "empty.mp4": (lambda p: p.write_bytes(b""), "empty|not a video"),
    "text.mp4": (lambda p: p.write_bytes(b"no video " * 50), "not a video"),
    "sound.mp4": (sound, "no video stream"),
    "mp4.webm": (lambda p: (make_video(p.with_suffix(".mp4"), FRAMES), p.with_suffix(".mp4").rename(p)), ""),
    "varying.mkv": (
        lambda p: make_video(p, FRAMES, times=[0, 40, 80, 200, 240, 300, 310, 400, 520, 560, 900, 901]),
        "",
    ),
    "turned.mp4": (turned, ""),
    "interlaced.mp4": (lambda p: encoded(p, {"x264-params": "interlaced=1"}), ""),
    "interlaced.mkv": (lambda p: encoded(p, {"x264-params": "bff=1:cqm=jvt"}), ""),
    "deep.mp4": (lambda p: make_video(p, FRAMES, codec="libx265", pixels="yuv420p10le"), ""),
    "deep.mkv": (lambda p: make_video(p, FRAMES, codec="libx264", pixels="yuv420p10le"), ""),
    "several.mkv": (lambda p: encoded(p, {}, streams=2), ""),
    "sounding.mp4": (lambda p: encoded(p, {"g": "5"}, sound=True), ""),
}
"""How each is made, and what its reject says; nothing where it is good."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("odd")
    for name, (make, _) in KINDS.items():
        make(root / name)
    return root


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("by", ["decoder", "reader"])
@pytest.mark.parametrize("device", ["cpu", "nvdec"])
def test_a_good_result_or_one_reject(by: str, device: str, folder: Path) -> None:
    from ...kit.fake_nvdec import faked_nvdec

    files, whys = [folder / name for name in KINDS], [why for _, why in KINDS.values()]
    with faked(1, memory=True), faked_nvdec():
        nvdec.forget()
        if by == "decoder":
            lane, samples = Lane(0), Samples.numbered(len(files))
            batch = Batch.from_list([np.fromfile(f, np.uint8) for f in files], "", samples)
            ctx = Context(Video(), "mixed" if device == "nvdec" else "cpu", samples, device=lane)
            with lane:
                out = ctx.op.mixed(ctx, batch) if device == "nvdec" else ctx.op.cpu(ctx, batch)
                out = lane.to_host(out) if device == "nvdec" else out
                lane.synchronize()
            found, rejects = [np.array(out.sample(i)) for i in range(len(files))], ctx.rejects
        else:
            op, source = opened(*files, sequence_length=FRAMES)
            everyone = range(len(source))
            assert len(source) == len(files)
            if device == "cpu":
                (made, *_), rejects = fetch(op, source, everyone)
            else:
                ((ctx, made),) = by_nvdec(op, source, [everyone], Lane(0), {})
                rejects = ctx.rejects
            found = [np.array(made.sample(i)) for i in everyone]
            source.close()
    assert sorted(r.slot for r in rejects) == [i for i, why in enumerate(whys) if why]
    for reject in rejects:
        assert any(word in reject.message for word in whys[reject.slot].split("|")), reject
    for file, frames, why in zip(files, found, whys, strict=True):
        if not why:
            away = np.abs(frames.astype(int) - np.array(frames_of(file)).astype(int))
            assert frames.shape[0] == FRAMES, file
            assert away.max() <= (0 if device == "cpu" else 40 if "deep" in file.name else 12), file


@pytest.mark.parametrize(("name", "yes"), [("interlaced.mp4", True), ("interlaced.mkv", True), ("turned.mp4", False),
                                           ("deep.mkv", False), ("sounding.mp4", False)])  # fmt: skip
def test_fields_are_the_cpus(name: str, yes: bool, folder: Path) -> None:
    with nvdec.NvClip(str(folder / name)) as clip:
        assert ("interlaced" in clip.refused) == yes


def test_sound_between_packets_is_read_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the positions in the index, and not by FFmpeg; the bytes are the same."""
    found = []
    for by_table in (True, False):
        if not by_table:
            monkeypatch.setattr(nvdec.NvClip, "_by_table", lambda *_: False)
        with nvdec.NvClip(str(folder / "sounding.mp4")) as clip:
            parts = clip.read([3, 7, 11]).parts
        found.append([bytes(run.data[at : at + size]) for part in parts for run in part for at, size, _ in run.packets])
        assert (clip.table is not None) == by_table
    assert found[0] == found[1]
    assert len(found[0]) > 6
