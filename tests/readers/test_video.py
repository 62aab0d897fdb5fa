"""experimental.readers.video and readers.video: which frames make sequences, as DALI 2.4 made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import coerce, parameter
from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.videos.reader import ExperimentalVideo, SequenceCutting, Video, boundary
from tests.kit.files.videos import make_video
from tests.kit.readers import fetch, open_reader

pytest.importorskip("av")
VFR = [0, 40, 80, 200, 240, 300, 310, 400, 520, 560]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for folder, name, count in (("c1", "a.mkv", 10), ("c0", "b.mkv", 23)):
        (root / folder).mkdir()
        make_video(root / folder / name, count)
    make_video(root / "vfr.mkv", 10, times=VFR)
    return root


def reader(cls: Any = ExperimentalVideo, **arguments: Any) -> Any:
    return cls(**{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})


def numbers(op: Any) -> list[list[int]]:
    source = open_reader(op)
    outputs, rejects = fetch(op, source, range(len(source)))
    assert not rejects
    return [n.tolist() for n in outputs[2 if op.has_labels else 1]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"sequence_length": 4}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({"sequence_length": 4, "step": 2}, [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]),
        ({"sequence_length": 3, "stride": 3}, [[0, 3, 6]]),
        ({"sequence_length": 3, "stride": 2, "step": 3}, [[0, 2, 4], [3, 5, 7]]),
        ({"sequence_length": 4, "stride": 2, "step": 3}, [[0, 2, 4, 6]]),
        ({"sequence_length": 4, "pad_mode": "constant"}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]]),
        ({"sequence_length": 4, "pad_mode": "edge"}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9]]),
        ({"sequence_length": 4, "pad_mode": "reflect_1001"}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 8]]),
        ({"sequence_length": 4, "pad_mode": "reflect_101"}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 8, 7]]),
        ({"sequence_length": 4, "stride": 3, "step": 4, "pad_mode": "constant"}, [[0, 3, 6, 9]]),
        ({"sequence_length": 12, "pad_mode": "constant"}, [[*range(10), -1, -1]]),
        ({"sequence_length": 4, "uniform_sample": True}, [[0, 3, 6, 9]]),
        ({"sequence_length": 12, "uniform_sample": True}, [[0, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9]]),
    ],
)
def test_sequences_are_dalis(root: Path, arguments: dict[str, Any], expected: list[list[int]]) -> None:
    op = reader(filenames=[str(root / "c1" / "a.mkv")], enable_frame_num="sequence", **arguments)
    assert numbers(op) == expected


def test_frames_labels_numbers_and_times(root: Path) -> None:
    frames = make_video(root / "again.mkv", 10, times=VFR)
    op = reader(filenames=[str(root / "again.mkv")], labels=[5], sequence_length=4, step=3, stride=1,
                pad_mode="constant", fill_value=[9], enable_frame_num="scalar", enable_timestamps=True)  # fmt: skip
    source = open_reader(op)
    (video, labels, first, times), rejects = fetch(op, source, [2, 0, 1])
    assert not rejects
    assert [int(n[0]) for n in first] == [6, 0, 3]
    assert [int(n[0]) for n in labels] == [5, 5, 5]
    for k, start in enumerate((6, 0, 3)):
        np.testing.assert_array_equal(video.sample(k), frames[start : start + 4])
        np.testing.assert_allclose(times.sample(k), np.array(VFR[start : start + 4]) / 1000, atol=1e-6)
    (video, _, _, times), _ = fetch(op, source, [3])
    assert times.sample(0).tolist() == [0.56, -1, -1, -1]
    assert (video.sample(0)[1:] == 9).all()


def test_folders_are_labels_and_keys_tell_sequences_apart(root: Path) -> None:
    (root / "tree").mkdir()
    for folder in ("c0", "c1"):
        (root / "tree" / folder).symlink_to(root / folder)
    op = reader(file_root=str(root / "tree"), sequence_length=8, enable_frame_num="scalar")
    source = open_reader(op)
    (_, labels, first), _ = fetch(op, source, range(len(source)))
    assert [(int(a[0]), int(b[0])) for a, b in zip(labels, first, strict=True)] == [(0, 0), (0, 8), (1, 0)]
    keys = [source.origin(i).key for i in range(3)]
    assert len(set(keys)) == 3
    assert keys[1].endswith("b.mkv#000008")


def test_the_order_of_a_shuffle_is_dalis(root: Path) -> None:
    op = reader(filenames=[str(root / "c0" / "b.mkv")], sequence_length=1, random_shuffle=True, initial_fill=1)
    first = [10, 0, 14, 16, 17, 18, 22, 5, 3, 9, 13, 4, 12, 8, 19, 6, 11, 7, 20, 2, 1, 15, 21]
    assert op.order(23, seed=3).pass_order(0).tolist() == first


def listed(root: Path, line: str, **arguments: Any) -> list[int]:
    (root / "list.txt").write_text(line + "\n")
    op = reader(file_list=str(root / "list.txt"), file_root=str(root), sequence_length=1, enable_frame_num="scalar",
                **arguments)  # fmt: skip
    return [n for (n,) in numbers(op)]


def test_parts_of_files(root: Path) -> None:
    assert listed(root, "c1/a.mkv 3 2 7", file_list_format="frames") == [2, 3, 4, 5, 6]
    assert listed(root, "c1/a.mkv 3 -5 -1", file_list_format="frames") == [5, 6, 7, 8]
    times = "c1/a.mkv 3 0.1 0.3"
    for rounding, (first, last) in (
        ("start_down_end_up", (2, 7)), ("start_up_end_down", (3, 6)), ("all_up", (3, 7)), ("all_down", (2, 6)),
    ):  # fmt: skip
        assert listed(root, times, file_list_rounding=rounding) == [*range(first, last + 1)]
    for rounding in ("start_down_end_up", "start_up_end_down", "all_up", "all_down"):  # DALI goes one frame down
        assert listed(root, "c1/a.mkv 3 0.08 0.28", file_list_rounding=rounding) == [2, 3, 4, 5, 6]
    assert boundary(np.array([0.0, 0.04, 0.08]), 9.0, True) == 3


def test_the_older_reader_has_its_own_arguments(root: Path) -> None:
    (root / "old.txt").write_text("c1/a.mkv 3 2 8\n")
    op = reader(Video, file_list=str(root / "old.txt"), file_root=str(root), sequence_length=4,
                file_list_frame_num=True, pad_sequences=True, enable_frame_num="sequence")  # fmt: skip
    assert numbers(op) == [[2, 3, 4, 5], [6, 7, -1, -1]]


def test_bad_files_are_one_reject_each(root: Path) -> None:
    (root / "bad.mkv").write_bytes(b"no video at all " * 20)
    op = reader(
        filenames=[str(root / "bad.mkv"), str(root / "c1" / "a.mkv"), str(root / "gone.mkv")], sequence_length=5
    )
    source = open_reader(op)
    assert len(source) == 4
    (video,), rejects = fetch(op, source, range(4))
    assert sorted(r.slot for r in rejects) == [0, 3]
    assert video.sample(1).shape == video.sample(2).shape == (5, 48, 64, 3)


def test_what_is_refused(root: Path) -> None:
    with pytest.raises(SpecError, match="give one of"):
        reader(sequence_length=3).check()
    with pytest.raises(SpecError, match="2 labels for 1 files"):
        reader(filenames=["a"], labels=[1, 2], sequence_length=3).check()
    with pytest.raises(JobError, match="needs a name, a label"):
        listed(root, "c1/a.mkv")
    with pytest.raises(JobError, match="has a sequence of 50 frames"):
        open_reader(reader(filenames=[str(root / "c1" / "a.mkv")], sequence_length=50))
    assert SequenceCutting(4, 4, 1, True, False).starts(5, 5) == []
