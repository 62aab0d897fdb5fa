"""A group of pictures that batches share is decoded once, by the CPU and by NVDEC; what comes out does not depend on
how batches are cut, or on their order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.gpu.lane import Lane
from dali_run.ops.video import media
from dali_run.readers.videos import reader as video
from tests.kit.fake_cupy import faked
from tests.kit.files.videos import make_video
from tests.kit.readers import fetch
from tests.kit.video_batches import batches, by_nvdec, check, opened

pytest.importorskip("av")
FRAMES = 40
CUTS = [(12, 4, 4, 2), (60, 1, 1, 5), (6, 4, 2, 3), (60, 1, 1, 1), (12, 5, 5, 3), (60, 4, 1, 3), (60, 3, 7, 2)]
"""Group, length and step of sequences, and batch."""


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The times of the frames that the CPU decodes."""
    found: list[int] = []
    real = media.Clip._pictures

    def pictures(clip: Any) -> Iterator[Any]:
        for frame in real(clip):
            found.append(frame.pts)
            yield frame

    with monkeypatch.context() as patch:
        patch.setattr(media.Clip, "_pictures", pictures)
        yield found


@pytest.mark.parametrize(("gop", "length", "step", "size"), CUTS)
def test_the_cpu_decodes_each_frame_once(
    gop: int, length: int, step: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [make_video(tmp_path / f"{k}.mp4", FRAMES, gop=gop) for k in range(2)]
    op, source = opened(tmp_path / "0.mp4", tmp_path / "1.mp4", sequence_length=length, step=step)
    with counted(monkeypatch) as decoded:
        for index in batches(source, size):
            (out, *_), rejects = fetch(op, source, index)
            assert not rejects
            check(source, index, out, frames)
    assert len(decoded) <= 2 * FRAMES
    assert not source._relays
    source.close()


@pytest.mark.parametrize(("length", "stride", "step", "size"), [(3, 2, 3, 1), (3, 2, 1, 1), (4, 2, 3, 2), (2, 5, 2, 2)])
@pytest.mark.parametrize("gop", [12, 60])
def test_batches_may_want_frames_that_the_one_before_steps_over(
    gop: int, length: int, stride: int, step: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences with a stride interlock, also those whose step is their length, the default."""
    from tests.kit.fake_nvdec import faked_nvdec

    frames = [make_video(tmp_path / "a.mp4", FRAMES, gop=gop)]
    how: dict[str, int] = {"sequence_length": length, "stride": stride, "step": step}
    op, source = opened(tmp_path / "a.mp4", **how)
    with counted(monkeypatch) as decoded:
        for index in batches(source, size):
            (out, *_), rejects = fetch(op, source, index)
            assert not rejects
            check(source, index, out, frames)
    assert len(decoded) <= FRAMES
    source.close()
    with faked(1, memory=True), faked_nvdec():
        op, source = opened(tmp_path / "a.mp4", **how)
        for ctx, out in by_nvdec(op, source, batches(source, size), Lane(0), {}):
            assert not ctx.rejects
            check(source, ctx.samples.index, out, frames, 12)
        source.close()


@pytest.mark.parametrize(("name", "codec"), [("a.webm", "libvpx"), ("raw.264", "libx264")])
def test_files_without_an_index_are_read_once(
    name: str, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [make_video(tmp_path / name, FRAMES, codec=codec)]
    op, source = opened(tmp_path / name, sequence_length=2)
    with counted(monkeypatch) as decoded:
        for index in batches(source, 3):
            (out, *_), rejects = fetch(op, source, index)
            assert not rejects
            check(source, index, out, frames)
    assert len(decoded) == FRAMES
    source.close()


@pytest.mark.parametrize(("gop", "length", "step", "size"), CUTS)
@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9", "mpeg4"])
def test_nvdec_is_fed_each_packet_once(
    codec: str, gop: int, length: int, step: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x265's open groups need the packets of two groups at their border; MPEG-4 is the CPU's."""
    from tests.kit.fake_nvdec import Decoder, faked_nvdec

    fed, counts, real = list[int](), dict[str, int](), Decoder.Decode
    monkeypatch.setattr(Decoder, "Decode", lambda d, p: (fed.append(p.pts) if p.bsl else None, real(d, p))[1])
    file = tmp_path / ("a.webm" if "vp9" in codec else "a.mp4")
    frames = [make_video(file, FRAMES, codec=codec, gop=gop)]
    with faked(1, memory=True), faked_nvdec(), counted(monkeypatch) as decoded:
        op, source = opened(file, sequence_length=length, step=step)
        decoded.clear()
        for ctx, out in by_nvdec(op, source, batches(source, size), Lane(0), counts):
            assert not ctx.rejects
            check(source, ctx.samples.index, out, frames, 0 if codec == "mpeg4" else 12)
        assert set(counts) == {"CPU threads" if codec == "mpeg4" else "NVDEC"}
        source.close()
    assert len(decoded if codec == "mpeg4" else fed) <= (FRAMES if codec != "libx265" else FRAMES * 2)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 2, 1, 3], [0, 0, 1, 1]])
def test_batches_in_any_order(order: list[int], tmp_path: Path) -> None:
    from tests.kit.fake_nvdec import faked_nvdec

    frames = [make_video(tmp_path / "a.mp4", FRAMES, gop=60)]
    with faked(1, memory=True), faked_nvdec():
        op, source = opened(tmp_path / "a.mp4", sequence_length=2)
        some = [batches(source, 5)[k] for k in order]
        for ctx, out in by_nvdec(op, source, some, Lane(0), {}):
            assert not ctx.rejects
            check(source, ctx.samples.index, out, frames, 12)
        for index in some:
            check(source, index, fetch(op, source, index)[0][0], frames)
        source.close()


def test_many_batches_at_once_and_their_threads(tmp_path: Path) -> None:
    frames = [make_video(tmp_path / f"{k}.mp4", FRAMES, gop=60) for k in range(3)]
    op, source = opened(*(tmp_path / f"{k}.mp4" for k in range(3)), sequence_length=1)
    with ThreadPoolExecutor(4) as pool:
        asked = batches(source, 7)
        for index, ((out, *_), rejects) in zip(asked, pool.map(lambda i: fetch(op, source, i), asked), strict=True):
            assert not rejects
            check(source, index, out, frames)
    source.close()


def test_a_shuffle_leaves_no_decoder_open(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", FRAMES, gop=60)
    op, source = opened(tmp_path / "a.mp4", sequence_length=1, random_shuffle=True)
    fetch(op, source, [3, 9, 4])
    assert not source._relays
    source.close()


def test_decoders_that_nobody_goes_on_with_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_MAX_HANDOFFS", 3)
    make_video(tmp_path / "a.mp4", FRAMES, gop=60)
    op, source = opened(tmp_path / "a.mp4", sequence_length=1)
    for start in range(0, FRAMES, 2):  # every other batch of one frame
        fetch(op, source, [start])
    assert len(source._relays) <= 3
    held = list(source._relays.values())
    source.close()
    assert all(relay.is_over for relay in held)


@pytest.mark.parametrize("device", ["cpu", "nvdec"])
def test_rejects_of_damage_do_not_depend_on_batches(device: str, tmp_path: Path) -> None:
    """Damage that FFmpeg finds: what is after it in its group is lost in batches of any size, what is before is not."""
    import av

    from tests.kit.fake_nvdec import faked_nvdec

    path = tmp_path / "a.mp4"
    make_video(path, FRAMES, gop=10)
    with av.open(str(path)) as container:
        packet = [p for p in container.demux(video=0) if p.size][15]
        at, size = packet.pos, packet.size
    data = bytearray(path.read_bytes())
    data[at + 4 : at + size] = bytes(size - 4)
    path.write_bytes(data)
    found = set()
    with faked(1, memory=True), faked_nvdec():
        for size in (1, 3, 8, FRAMES):
            op, source = opened(path, sequence_length=2)
            bad = set[int]()
            if device == "cpu":
                for index in batches(source, size):
                    bad |= {index[r.slot] for r in fetch(op, source, index)[1]}
            else:
                for ctx, _ in by_nvdec(op, source, batches(source, size), Lane(0), {}):
                    bad |= {int(ctx.samples.index[r.slot]) for r in ctx.rejects}
            found.add(frozenset(bad))
            source.close()
    (only,) = found
    assert 0 < len(only) < FRAMES // 2
