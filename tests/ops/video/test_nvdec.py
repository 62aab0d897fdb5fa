"""decoders.video through NVDEC, with a stand-in for its package that decodes through PyAV: sequences, seeks, colours,
and what goes to the CPU instead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dali_run.ops.base import coerce, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.errors import SampleError
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.video.decoders import Video
from dali_run.ops.video.nvdec import matrix_of

from ...kit.fake_cupy import faked
from ...kit.files.videos import make_video

pytest.importorskip("av")
CLOSE = 12
"""Levels between FFmpeg's converter and ours."""


def decode(
    files: list[Path], refused: tuple[str, ...] = (), fake: bool = True, **arguments: Any
) -> tuple[Batch, list[Any], Mapping[str, int], list[str]]:
    """Of the mixed kernel: the frames, rejects, counts for the report, and what was asked of the stand-in."""
    from ...kit.fake_nvdec import faked_nvdec

    op = Video(**{k: coerce(parameter(Video, k), v) for k, v in arguments.items()})
    op.check()
    counts: dict[str, int] = {}

    def count(reason: str, n: int) -> None:
        counts[reason] = counts.get(reason, 0) + n

    encoded = Batch.from_list([np.fromfile(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    with faked(1, memory=True), faked_nvdec(refused) as log:
        lane = Lane(0)
        with lane:
            services = KernelServices(count=count, decoders=lambda decoder, n, seconds: count(decoder, n))
            ctx = Context(op, "mixed", encoded.samples, device=lane, services=services)
            out = lane.to_host(op.mixed(ctx, encoded))
            lane.synchronize()
        return Batch(out.data.copy(), out.offsets, out.shapes, out.layout, out.samples), ctx.rejects, counts, list(log)


def close(made: np.ndarray, frames: list[np.ndarray], most: int = CLOSE) -> None:
    assert made.shape == (len(frames), *frames[0].shape)
    away = np.abs(made.astype(int) - np.array(frames).astype(int))
    assert away.max() <= most
    assert away.mean() < 2.5


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.mp4", {"codec": "libx264"}),
        ("long.mkv", {"codec": "libx264", "gop": 60}),
        ("h.mp4", {"codec": "libx265"}),
        ("v.webm", {"codec": "libvpx-vp9"}),
        ("deep.mp4", {"codec": "libx265", "pixels": "yuv420p10le"}),
        ("full.mp4", {"codec": "libx264", "pixels": "yuvj420p"}),
        ("vfr.mkv", {"codec": "libx264", "times": [0, 40, 80, 200, 240, 300, 310, 400, 520, 560]}),
    ],
)
def test_frames_are_those_of_the_cpu(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    count = len(how.get("times", range(40)))
    frames = make_video(tmp_path / name, count, **how)
    for wanted in (list(range(count)), [count - 1, 0, 3, 3], [5, 6, 2, count // 2]):
        out, rejects, counts, _ = decode([tmp_path / name], frames=wanted)
        assert not rejects
        assert counts == {"NVDEC": 1}
        close(out.sample(0), [frames[n] for n in wanted])


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9"])
def test_threads_share_long_videos(codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At key frames; x265's are in open groups: pictures before them come after them, and need what is before both."""
    from dali_run.ops.video import nvdec, packets

    file = tmp_path / f"a.{'webm' if 'vp9' in codec else 'mp4'}"
    frames = make_video(file, 40, codec=codec)
    monkeypatch.setattr(packets, "_MIN_FRAMES", 8)
    for source in (str(file), np.fromfile(file, np.uint8)):
        with nvdec.NvClip(source) as clip:
            runs = [run for part in clip.read(range(40)).parts for run in part]
        assert len(clip.parts) == len(runs) == 4  # a key frame every six
        assert [n for run in runs for n in run.wanted] == list(range(40))
        assert all(len(run.packets) < 24 for run in runs)
        if codec == "libx265":  # NVDEC gives the times of pictures that it leaves out to later ones
            times = clip.index[0]
            assert all(pts >= times[run.wanted[0]] for run in runs for _, _, pts in run.packets)
    for wanted in (list(range(40)), [0, 11, 12, 39], [3, 22, 23, 24, 25]):
        out, rejects, counts, _ = decode([file], frames=wanted)
        assert not rejects
        assert counts == {"NVDEC": 1}
        close(out.sample(0), [frames[n] for n in wanted])


def units_of(stream: bytes) -> list[bytes]:
    """The units of a byte stream."""
    return [unit.strip(b"\0") for unit in stream.split(b"\0\0\1") if unit.strip(b"\0")]


@pytest.mark.parametrize(("codec", "name"), [("libx264", "a.mp4"), ("libx264", "a.mkv"), ("libx265", "h.mp4")])
def test_byte_streams_are_those_of_ffmpegs_filter(codec: str, name: str, tmp_path: Path) -> None:
    import av

    from dali_run.ops.video import byte_streams

    make_video(tmp_path / name, 12, codec=codec)
    with av.open(str(tmp_path / name)) as container:
        stream = container.streams.video[0]
        header, kind = bytes(stream.codec_context.extradata), stream.codec_context.codec.canonical_name
        sets = byte_streams.parameter_sets(kind, header)
        assert sets
        wanted = av.bitstream.BitStreamFilterContext(f"{kind}_mp4toannexb", stream)
        for k, packet in enumerate(p for p in container.demux(stream) if p.size):
            made = byte_streams.annexb(bytes(packet), b"" if k else sets)
            units = b"".join(bytes(unit) for unit in wanted.filter(packet))
            if k in (0, 1):  # before later key frames it has the sets again
                assert sorted(units_of(made)) == sorted(units_of(units))
    assert not any(byte_streams.parameter_sets(kind, header[:cut]) for cut in range(7))
    with pytest.raises(ValueError, match="longer than their packet"):
        byte_streams.annexb(b"\0\0\0\3abc\0\0\0\4abc", b"")


def test_deep_colours_beside_sharp_edges(tmp_path: Path) -> None:
    """FFmpeg's converter takes chroma between two rows where samples have more than 8 bits."""
    frames = make_video(tmp_path / "deep.mp4", 6, codec="libx265", pixels="yuv420p10le", size=(144, 160))
    out, rejects, counts, _ = decode([tmp_path / "deep.mp4"])
    assert not rejects
    assert counts == {"NVDEC": 1}
    close(out.sample(0), frames, 40)


def test_files_of_one_encoder_are_probed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg decodes frames to find out what a file is; a file that begins like another is like it. Those that do not
    are not taken for it: other sizes, bits, ranges, codecs."""
    from dali_run.ops.video import media

    made: list[tuple[str, dict[str, Any]]] = [
        ("a.mp4", {}), ("b.mp4", {}), ("full.mp4", {"pixels": "yuvj420p"}), ("large.mp4", {"size": (80, 96)}),
        ("v.webm", {"codec": "libvpx-vp9"}), ("w.webm", {"codec": "libvpx-vp9"}),
        ("u.webm", {"codec": "libvpx-vp9", "size": (80, 96)}), ("h.mp4", {"codec": "libx265"}),
        ("deep.mp4", {"codec": "libx265", "pixels": "yuv420p10le"}), ("a.avi", {"codec": "mpeg4"}),
        ("s.mp4", {"pixels": "yuv422p"}),
    ]  # fmt: skip
    for name, how in made:
        make_video(tmp_path / name, 8, **how)
    opened: list[str] = []
    real = media.Clip._begin
    monkeypatch.setattr(media, "_facts", {})
    monkeypatch.setattr(media.Clip, "_begin", lambda c, options: (real(c, options), options or opened.append("probed")))
    for name, _ in made:
        with media.Clip(str(tmp_path / name)) as clip:
            facts, index = clip.facts, clip.index
        for source in (str(tmp_path / name), np.fromfile(tmp_path / name, np.uint8)):
            opened.clear()
            with media.Glance(source) as glance:
                assert glance.facts == facts
                assert glance.index == index
            if isinstance(source, np.ndarray):
                assert opened == ([] if name != "a.avi" else ["probed"])


def test_decoders_are_kept_and_reconfigured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from dali_run.ops.video import nvdec

    with ThreadPoolExecutor(1) as one:
        monkeypatch.setattr(nvdec, "threads", lambda: one)
        frames = [make_video(tmp_path / f"{k}.mp4", 12, size=s) for k, s in enumerate([(64, 96), (48, 64), (64, 96)])]
        out, rejects, counts, log = decode([tmp_path / f"{k}.mp4" for k in range(3)], start_frame=2, stride=3)
    assert not rejects
    assert log == ["created H264", "reconfigured 64x48", "reconfigured 96x64"]
    for k in range(3):
        close(out.sample(k), frames[k][2::3])
    assert counts == {"NVDEC": 3}


def test_what_nvdec_refuses_is_the_cpus_and_counted(tmp_path: Path) -> None:
    names = {"h.mp4": "libx265", "a.mp4": "libx264", "m.avi": "mpeg4", "a.webm": "libvpx"}
    frames = {name: make_video(tmp_path / name, 10, codec=codec) for name, codec in names.items()}
    frames["odd.mp4"] = make_video(tmp_path / "odd.mp4", 6, codec="libx264", pixels="yuv444p")
    out, rejects, counts, _ = decode([tmp_path / n for n in frames], refused=("HEVC",), pad_mode="edge",
                                     sequence_length=8)  # fmt: skip
    assert not rejects
    assert counts.pop("NVDEC") == 1
    assert counts.pop("CPU threads") == 4
    assert sum(counts.values()) == 4
    assert all(reason.startswith("not for NVDEC: ") for reason in counts)
    assert any("not available on this device" in reason for reason in counts)
    for k, (name, own) in enumerate(frames.items()):
        wanted = [own[min(n, len(own) - 1)] for n in range(8)]
        if name == "a.mp4":
            close(out.sample(k), wanted)
        else:
            np.testing.assert_array_equal(out.sample(k), wanted)


def test_codecs_that_a_gpu_refused_are_not_asked_again(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "h.mp4", 10, codec="libx265")
    names = [tmp_path / "h.mp4"] * 30
    out, rejects, counts, log = decode(names, refused=("HEVC",))
    assert not rejects
    assert counts.pop("CPU threads") == 30
    assert list(counts.values()) == [30]
    assert 1 <= len(log) <= 8  # threads that asked at the same time
    for k in range(30):
        np.testing.assert_array_equal(out.sample(k), frames)


def test_estimates_of_files_that_were_read_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.ops.video import decoders

    monkeypatch.setattr(decoders, "_cached_facts", {})
    make_video(tmp_path / "a.mp4", 10)
    make_video(tmp_path / "b.mp4", 12, size=(32, 48))
    files = [np.fromfile(tmp_path / name, np.uint8) for name in ("a.mp4", "b.mp4")]
    encoded = Batch.from_list([*files, np.zeros(100, np.uint8)], "", Samples.numbered(3))
    op = Video()
    before, _ = op.estimate_memory("mixed", encoded)
    assert before.tolist() == [10 * 48 * 64 * 3, 12 * 32 * 48 * 3, 0]
    monkeypatch.setattr(decoders, "_cached_facts", {})
    decode([tmp_path / "a.mp4", tmp_path / "b.mp4"])
    monkeypatch.setattr(decoders, "Glance", None)
    np.testing.assert_array_equal(op.estimate_memory("mixed", encoded.take(slice(0, 2)))[0], before[:2])


def test_damage_and_fill_are_those_of_the_cpu(tmp_path: Path) -> None:
    frames = make_video(tmp_path / "good.mp4", 30)
    whole = (tmp_path / "good.mp4").read_bytes()
    (tmp_path / "half.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.mp4").write_bytes(b"no video " * 50)
    names = ["half.mp4", "good.mp4", "text.mp4"]
    out, rejects, _, _ = decode([tmp_path / n for n in names], start_frame=27, sequence_length=5, fill_value=[9, 8, 7])
    assert sorted(r.slot for r in rejects) == [0, 2]
    close(out.sample(1)[:3], frames[27:])
    assert (out.sample(1)[3:] == [9, 8, 7]).all()


def test_matrices() -> None:
    """Of ITU-R BT.601 and BT.709, as they are printed everywhere."""
    assert matrix_of(6, 1, "yuv420p")[:6] == pytest.approx((1.164, 16, 1.596, 0.392, 0.813, 2.017), abs=6e-4)
    assert matrix_of(1, 1, "yuv420p")[:6] == pytest.approx((1.164, 16, 1.793, 0.213, 0.533, 2.112), abs=6e-4)
    assert matrix_of(2, 2, "yuv420p")[:6] == pytest.approx((1, 0, 1.402, 0.344, 0.714, 1.772), abs=6e-4)
    assert matrix_of(5, 0, "yuvj420p") == matrix_of(2, 2, "yuv420p")


@pytest.mark.parametrize("problem", [SampleError("corrupt_data", "damaged"), MemoryError()])
def test_the_cpu_closes_the_file_that_it_went_on_with_whatever_goes_wrong(tmp_path: Path, problem: Exception) -> None:
    from dali_run.ops.video import nvdec, packets

    make_video(tmp_path / "a.mp4", 24)
    closed = []

    class Failing:
        def decode(self, numbers: list[int], places: Any) -> None:
            raise problem

        def close(self) -> None:
            closed.append(True)

    with faked(), nvdec.NvClip(str(tmp_path / "a.mp4")) as clip:
        left = nvdec._PausedDecoder(("", 0), clip=cast("Any", Failing()), why="odd")
        try:
            outcome = nvdec._by_cpu(0, clip, [1], {1: []}, "odd", packets.SharedGroups(), left)
            assert isinstance(outcome[0], SampleError)
        except MemoryError:
            assert isinstance(problem, MemoryError)
    assert closed == [True]
