"""The tables of MP4 files against the packets that FFmpeg reads: the same index, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import SampleError
from dali_run.ops.video.media import Clip, Glance
from dali_run.ops.video.mp4 import samples_of

from ...kit.files.videos import make_video

av = pytest.importorskip("av")
VFR = [0, 40, 80, 200, 240, 300, 310, 400]


def indexed(source: Any, by_table: bool) -> Any:
    """The index and the table, or the reject's code; whether the file's own tables gave them."""
    used: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        real = Clip._confirmed
        patch.setattr(Clip, "_confirmed", lambda c, f: (used.append(True), real(c, f))[1])
        if not by_table:
            patch.setattr(Clip, "_tabled", lambda _: None)
        try:
            with Glance(source) as clip:
                index, table = clip.index, clip.table
        except SampleError as e:
            return e.code, None, bool(used)
    arrays = None if table is None else [a.tolist() for a in (table.times, table.starts, table.sizes, table.order)]
    return index, arrays, bool(used)


@pytest.mark.parametrize(
    ("name", "how", "options", "plain"),
    [
        ("a.mp4", {}, {}, True), ("h.mp4", {"codec": "libx265"}, {}, True), ("a.mov", {"gop": 60}, {}, True),
        ("fast.mp4", {}, {"movflags": "faststart"}, True), ("bare.mp4", {}, {"use_editlist": "0"}, True),
        ("v.mp4", {"codec": "libvpx-vp9"}, {}, True), ("vfr.mp4", {"times": VFR}, {}, True),
        ("pieces.mp4", {}, {"movflags": "frag_keyframe+empty_moov"}, False), ("a.mkv", {}, {}, False),
    ],
)  # fmt: skip
def test_the_index_is_that_of_the_packets(
    name: str, how: dict[str, Any], options: dict[str, str], plain: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    make_video(path, len(how.get("times", range(70))), options=options, **how)
    for source in (str(path), np.fromfile(path, np.uint8)):
        index, table, used = indexed(source, True)
        assert used == plain
        assert (index, table) == indexed(source, False)[:2]
        assert len(index[0]) == len(how.get("times", range(70)))


def test_files_that_were_changed_have_the_index_of_their_packets(tmp_path: Path) -> None:
    """Bytes of the tables overwritten, and files cut off: what FFmpeg makes of it."""
    make_video(tmp_path / "a.mp4", 30)
    whole = (tmp_path / "a.mp4").read_bytes()
    random, movie, outcomes = np.random.default_rng(0), whole.index(b"moov"), set()
    for turn in range(60):
        data = bytearray(whole)
        for at in random.integers(movie, len(whole), 1 + turn % 4):
            data[at] = random.integers(256)
        changed = np.frombuffer(bytes(data[: len(data) if turn % 5 else random.integers(movie)]), np.uint8)
        assert indexed(changed, True)[:2] == indexed(changed, False)[:2], turn
        outcomes.add(isinstance(indexed(changed, True)[0], str))
    assert outcomes == {False, True}


def test_a_table_that_does_not_fit_the_file_is_none(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", 12)
    data = (tmp_path / "a.mp4").read_bytes()
    with av.open(str(tmp_path / "a.mp4")) as container:
        track = container.streams.video[0].id
    found = samples_of(str(tmp_path / "a.mp4"), track)
    assert found is not None
    assert len(found.sizes) == 12
    assert samples_of(str(tmp_path / "a.mp4"), track + 1) is None
    assert samples_of(str(tmp_path / "gone.mp4"), track) is None
    for cut in range(0, len(data) - 1, 97):
        assert samples_of(np.frombuffer(data[:cut], np.uint8), track) is None


def test_boxes_without_end_are_left_to_ffmpeg(tmp_path: Path) -> None:
    """Eight bytes each: a file of megabytes would take seconds, and as many boxes of media data all memory."""
    make_video(tmp_path / "a.mp4", 12)
    data = (tmp_path / "a.mp4").read_bytes()
    with av.open(str(tmp_path / "a.mp4")) as container:
        track = container.streams.video[0].id
    plain = samples_of(np.frombuffer(data, np.uint8), track)
    assert plain is not None
    for kind in (b"free", b"mdat"):
        box = (8).to_bytes(4, "big") + kind
        some = samples_of(np.frombuffer(data + 100 * box, np.uint8), track)
        assert some is not None
        assert (some.starts == plain.starts).all()
        assert samples_of(np.frombuffer(data + 5000 * box, np.uint8), track) is None
        at, size = data.index(b"moov") - 4, int.from_bytes(data[data.index(b"moov") - 4 :][:4], "big")
        movie = (size + 5000 * 8).to_bytes(4, "big") + data[at + 4 : at + size] + 5000 * box
        assert samples_of(np.frombuffer(data[:at] + movie + data[at + size :], np.uint8), track) is None
