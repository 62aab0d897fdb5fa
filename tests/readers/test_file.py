"""readers.file: which files, which labels (DALI's answers), which bytes, and what is said of files that are gone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.file import File, FileSet, _Files
from tests.kit.readers import content, fetch, open_reader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders whose order tells byte-wise from natural and from case-blind sorting."""
    for folder, count in (("b", 2), ("a", 1), ("c10", 1), ("c2", 1), ("C3", 1)):
        (tmp_path / "root" / folder / "sub.jpg").mkdir(parents=True)
        for i in range(count):
            (tmp_path / "root" / folder / f"im{i}.jpg").write_bytes(f"{folder}{i}".encode() * (i + 1))
    (tmp_path / "root" / "aempty").mkdir()
    (tmp_path / "root" / "a" / "note.txt").write_bytes(b"x")
    (tmp_path / "root" / "a" / "UP.JPEG").write_bytes(b"")
    (tmp_path / "root" / "top.jpg").write_bytes(b"x")
    (tmp_path / "root" / "c 10").mkdir()
    (tmp_path / "root" / "c 10" / "x y.jpg").write_bytes(b"spaces")
    return tmp_path / "root"


def listed(**kwargs: Any) -> list[tuple[str, int]]:
    reader = File(**kwargs)
    source = open_reader(reader)
    (_, labels), _ = fetch(reader, source, range(len(source)))
    assert labels.dtype == np.int32
    assert labels.shapes.tolist() == [[1]] * len(source)
    return [(source.origin(i).key, int(labels.sample(i)[0])) for i in range(len(source))]


def test_folders_are_labels(root: Path) -> None:
    # DALI 2.4: byte-wise order, an empty folder takes a label, no recursion, top-level files and folders left out
    assert listed(file_root=str(root)) == [
        ("C3/im0.jpg", 0),
        ("a/UP.JPEG", 1),
        ("a/im0.jpg", 1),
        ("b/im0.jpg", 3),
        ("b/im1.jpg", 3),
        ("c 10/x y.jpg", 4),
        ("c10/im0.jpg", 5),
        ("c2/im0.jpg", 6),
    ]


def test_filters(root: Path) -> None:
    assert listed(file_root=str(root), dir_filters=("c?*",)) == [
        ("C3/im0.jpg", 0),
        ("c 10/x y.jpg", 1),
        ("c10/im0.jpg", 2),
        ("c2/im0.jpg", 3),
    ]
    assert [k for k, _ in listed(file_root=str(root), dir_filters=("c?*",), case_sensitive_filter=True)] == [
        "c 10/x y.jpg",
        "c10/im0.jpg",
        "c2/im0.jpg",
    ]
    assert listed(file_root=str(root), file_filters=("*.TXT", "up.*")) == [("a/UP.JPEG", 1), ("a/note.txt", 1)]
    assert listed(file_root=str(root), file_filters=("[iu]m1*",)) == [("b/im1.jpg", 3)]


def test_lists(root: Path, tmp_path: Path) -> None:
    assert listed(file_root=str(root), files=("b/im1.jpg", "a/im0.jpg"), labels=(4, -9)) == [
        ("b/im1.jpg", 4),
        ("a/im0.jpg", -9),
    ]
    absolute = str(root / "a" / "im0.jpg")
    assert listed(files=(absolute, absolute)) == [(absolute + "#0", 0), (absolute + "#1", 1)]
    text = tmp_path / "list.txt"
    text.write_bytes(b"root/a/im0.jpg 5\r\nroot/b/im1.jpg \t 7 \n\nroot/c 10/x y.jpg 3")
    expected = [("root/a/im0.jpg", 5), ("root/b/im1.jpg", 7), ("root/c 10/x y.jpg", 3)]
    assert listed(file_list=str(text)) == expected
    text.write_bytes(b"a/im0.jpg 5\n")
    assert listed(file_list=str(text), file_root=str(root)) == [("a/im0.jpg", 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a.jpg 1\nb.jpg\n", r"list.txt:2: needs a file name and a label .*b'b.jpg'"),
        (b"a.jpg 1.5\n", "list.txt:1"),
        (b"a.jpg -1\n", "list.txt:1"),
        (b"12\n", "list.txt:1"),
        (b"a.jpg 99999999999999999999999\n", "list.txt:1: label 99999999999999999999 does not fit 32 bits"),
        (b"\n\n", "lists no files"),
        (b"\0 1\n", "list.txt:1"),
    ],
)
def test_bad_lists(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(text)
    with pytest.raises(JobError, match=message):
        File(file_list=str(path)).open()


def test_wrong_arguments(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"files": ("a",), "file_list": "b"},
        {"file_root": "a", "labels": (1,)},
        {"files": ()},
        {"files": ("a", "b"), "labels": (1,)},
        {"files": ("a",), "labels": (2**31,)},
    ]
    for kwargs in wrong:
        with pytest.raises(SpecError):
            File(**kwargs).check()
    with pytest.raises(JobError, match=r"none: there is no such folder$"):
        File(file_root=str(tmp_path / "none")).open()
    with pytest.raises(JobError, match="no matching folders"):
        File(file_root=str(tmp_path)).open()
    (tmp_path / "a").mkdir()
    with pytest.raises(JobError, match="1 folder was searched; give"):
        File(file_root=str(tmp_path)).open()


@pytest.mark.parametrize("staging", [False, True])
def test_bytes(tmp_path: Path, staging: bool) -> None:
    rng = np.random.default_rng(0)
    files = {f"{i}.bin": rng.bytes(size) for i, size in enumerate([0, 1, 15, 16, 17, 4096, 70000, 3])}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    reader = File(file_root=str(tmp_path), files=tuple(files))
    source = open_reader(reader)
    index = [7, 0, 6, 5, 1, 1, 3, 2, 4]
    (data, labels), rejects = fetch(reader, source, index, staging)
    assert content(data) == [list(files.values())[i] for i in index]
    assert labels.data.tolist() == index
    assert not rejects
    (data, _), _ = fetch(reader, source, [])
    assert len(data) == 0


def test_parts_of_a_batch_in_parallel(root: Path) -> None:
    reader = File(file_root=str(root))
    source = open_reader(reader)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda k: content(fetch(reader, source, [k % 8, 3])[0][0]), range(200)))
    (whole, _), _ = fetch(reader, source, range(8))
    assert results == [[content(whole)[k % 8], content(whole)[3]] for k in range(200)]


def test_what_cannot_be_read_is_rejected_alone(root: Path) -> None:
    paths = [root / "b" / n for n in ("im0.jpg", "gone.jpg", "grew.jpg", "shrank.jpg", "deleted.jpg", "pipe.jpg")]
    for path in paths[2:5]:
        path.write_bytes(b"1234567890")
    os.mkfifo(paths[5])
    reader = File(files=tuple(map(str, [*paths, root / "a"])))
    source = open_reader(reader)
    paths[2].write_bytes(b"1234567890more")
    paths[3].write_bytes(b"1234")
    paths[4].unlink()
    (data, labels), rejects = fetch(reader, source, range(7))
    assert content(data)[0] == b"b0"
    assert labels.data.tolist() == list(range(7))
    assert {r.slot: r.code for r in rejects} == dict.fromkeys(range(1, 7), "read_failed")
    said = {r.slot: r.message for r in rejects}
    assert "No such file" in said[1]
    assert "10 bytes in the index, 14 now" in said[2]
    assert "10 bytes in the index, 4 now" in said[3]
    assert "No such file" in said[4]
    assert "not a file" in said[5]
    assert "not a file" in said[6]


def test_a_dangling_link_is_reported_not_skipped(root: Path) -> None:
    (root / "a" / "dangling.jpg").symlink_to("/nonexistent/file")
    reader = File(file_root=str(root), dir_filters=("a",))
    source = open_reader(reader)
    keys = [source.origin(i).key for i in range(len(source))]
    _, rejects = fetch(reader, source, range(len(source)))
    assert [(keys[r.slot], r.code) for r in rejects] == [("a/dangling.jpg", "read_failed")]


def test_names_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    name = os.fsencode(tmp_path) + b"/k/\xff\n'.jpg"
    with open(name, "wb") as f:
        f.write(b"odd")
    reader = File(file_root=str(tmp_path))
    source = open_reader(reader)
    (data, _), rejects = fetch(reader, source, [0])
    assert content(data) == [b"odd"]
    assert not rejects
    assert source.origin(0).key == "k/\\xff\n'.jpg"
    assert source.keys(np.zeros(1, np.int64)) == [b"k/\\xff\n'.jpg"]


def test_keys_of_many_are_those_of_each(root: Path) -> None:
    names = ("a/0.jpg", "b/1.jpg", "a/0.jpg", "a/1.jpg")
    source = open_reader(File(file_root=str(root), files=names))
    index = np.array([3, 0, 2, 1, 3])
    assert source.keys(index) == [source.origin(i).key.encode() for i in index.tolist()]
    assert source.keys(index)[1:3] == [b"a/0.jpg#0", b"a/0.jpg#2"]


def test_fingerprint(root: Path) -> None:
    def now() -> str:
        return File(file_root=str(root)).open().fingerprint()

    before = now()
    assert before == now()
    os.utime(root / "b" / "im0.jpg", ns=(1, 1))
    touched = now()
    (root / "b" / "im1.jpg").write_bytes(b"longer than it was")
    edited = now()
    (root / "b" / "im9.jpg").write_bytes(b"")
    added = now()
    (root / "AAA").mkdir()  # moves all labels
    relabelled = now()
    assert len({before, touched, edited, added, relabelled}) == 5
    names = ("b/im0.jpg", "b/im1.jpg")
    labels = [File(file_root=str(root), files=names, labels=x).open().fingerprint() for x in ((1, 2), (2, 1))]
    assert labels[0] != labels[1]


def test_closing_lets_go(root: Path) -> None:
    source = File(file_root=str(root)).open()
    assert isinstance(source, _Files)
    before = len(os.listdir("/proc/self/fd"))
    source.close()
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_folder_that_is_not_the_one_is_told_from_the_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/train/cats").mkdir(parents=True)
    (tmp_path / "data/empty").mkdir()
    (tmp_path / "data/train/cats/x.jpg").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    cases = {
        "data": "there are some in data/train/cats: is data/train meant",
        "data/train/cats": f"there is x.jpg in it: is {tmp_path}/data/train meant",
        "data/empty": "it has no matching folders; give",
        "train": f"file_root train: there is no such folder in {tmp_path}$",
        "data/train/cats/x.jpg": "x.jpg is a file, not a folder of folders",
    }
    for root, words in cases.items():
        with pytest.raises(JobError, match=words):
            File(file_root=root).open()


def test_origins_of_many_files_are_those_of_each(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a", "b/ü.jpg", "b/c.jpg"):
        (tmp_path / name).write_bytes(b"x")
    names = [b"a", "b/ü.jpg".encode(), b"b/c.jpg", b"a", b"b/\xff.jpg", str(tmp_path / "a").encode()]
    for root in (str(tmp_path), None):
        files = FileSet(root, names)
        index = np.array([5, 3, 1, 0, 4, 2])
        found, each = files.origins_of(index), [files.origin(i) for i in index.tolist()]
        assert [(o, o.named) for o in found] == [(o, o.named) for o in each]
        files.close()
