"""NVDEC itself, where there is a GPU with video engines and PyNvVideoCodec: frames beside the CPU's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.base import coerce, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.video import nvdec
from dali_run.ops.video.decoders import Video

from ...kit.files.videos import make_video
from ...kit.video_batches import batches, by_nvdec, check, opened

pytest.importorskip("av")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "codec", "pixels", "most"),
    [
        ("a.mp4", "libx264", "yuv420p", 12), ("full.mkv", "libx264", "yuvj420p", 12),
        ("h.mp4", "libx265", "yuv420p", 12),
        ("deep.mp4", "libx265", "yuv420p10le", 40), ("v.webm", "libvpx-vp9", "yuv420p", 12),
    ],
)  # fmt: skip
def test_frames_are_those_of_the_cpu(name: str, codec: str, pixels: str, most: int, tmp_path: Path) -> None:
    from dali_run.ops.gpu.lane import Lane

    if nvdec.module() is None:
        pytest.skip("there is no PyNvVideoCodec that finds a driver")
    frames = make_video(tmp_path / name, 40, codec=codec, pixels=pixels, size=(144, 160), gop=12)
    batch = Batch.from_list([np.fromfile(tmp_path / name, np.uint8)], "", Samples.numbered(1))
    lane = Lane(0)
    for wanted in (list(range(40)), [39, 0, 3, 3], [5, 6, 2, 20]):
        op = Video(frames=coerce(parameter(Video, "frames"), wanted))
        counts: dict[str, int] = {}
        reasons: list[str] = []
        with lane:
            services = KernelServices(
                count=lambda why, _, told=reasons: told.append(why),
                decoders=lambda decoder, n, _, counts=counts: counts.update({decoder: n}),
            )
            ctx = Context(op, "mixed", batch.samples, device=lane, services=services)
            out = lane.to_host(op.mixed(ctx, batch))
            lane.synchronize()
        assert not ctx.rejects
        assert counts == {"NVDEC": 1}, (wanted, reasons)
        away = np.abs(out.sample(0).astype(int) - np.array([frames[n] for n in wanted]))
        assert away.max() <= most
        assert away.mean() < 3


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("h.mp4", "libx265"), ("v.webm", "libvpx-vp9")])
@pytest.mark.parametrize(("length", "step", "size"), [(1, 1, 7), (4, 2, 3)])
def test_batches_go_on_in_a_group(name: str, codec: str, length: int, step: int, size: int, tmp_path: Path) -> None:
    """Frames are those of the CPU where decoders are handed from batch to batch, and none was decoded anew."""
    from dali_run.ops.gpu.lane import Lane

    if nvdec.module() is None:
        pytest.skip("there is no PyNvVideoCodec that finds a driver")
    frames = [make_video(tmp_path / name, 64, codec=codec, size=(144, 160), gop=32)]
    anew, real = [], nvdec.NvClip.anew
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvdec.NvClip, "anew", lambda clip, run: (anew.append(run.wanted), real(clip, run))[1])
        op, source = opened(tmp_path / name, sequence_length=length, step=step)
        counts: dict[str, int] = {}
        for ctx, out in by_nvdec(op, source, batches(source, size), Lane(0), counts):
            assert not ctx.rejects
            check(source, ctx.samples.index, out, frames, 12)
        source.close()
    assert set(counts) == {"NVDEC"}
    assert not anew
