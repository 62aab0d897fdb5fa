"""readers.webdataset against tarfile, DALI's answers, found archives, and damage."""

from __future__ import annotations

import csv
import gzip
import io
import os
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.types import DALIDataType
from dali_run.readers.fetch import index_cache
from dali_run.readers.webdataset import WebDataset
from tests.kit.operators import operator
from tests.kit.readers import content, fetch, open_reader

Items = list[tuple[str, bytes]]


def tar(path: Path, items: Items, fmt: int = tarfile.USTAR_FORMAT, pax: dict[str, str] | None = None) -> str:
    with tarfile.open(path, "w", format=fmt, pax_headers=pax) as archive:
        for name, data in items:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def read(reader: WebDataset) -> tuple[list[list[bytes]], list[Any], list[str]]:
    source = open_reader(reader)
    batches, rejects = fetch(reader, source, range(len(source)))
    keys = [source.origin(i).key for i in range(len(source))]
    assert len(set(keys)) == len(keys)
    return [list(row) for row in zip(*map(content, batches), strict=True)], rejects, keys


NINE: Items = [
    ("0001.jpg", b"j1"),
    ("0001.cls", b"3"),
    ("0001.seg.png", b"zz"),
    ("0002.cls", b"4"),
    ("0002.jpg", b"j2"),
    ("dir/0003.jpg", b"j3"),
    ("dir/0003.cls", b"5"),
    ("0004.jpg", b"j4"),
    ("0005.cls", b"9"),
]
FIVE = [[b"j1", b"3"], [b"j2", b"4"], [b"j3", b"5"], [b"j4", b""], [b"", b"9"]]


@pytest.mark.parametrize(
    ("items", "arguments", "expected"),
    [  # answers of DALI 2.4
        (NINE, {}, FIVE),
        (NINE, {"missing_component_behavior": "empty"}, FIVE),
        (NINE, {"missing_component_behavior": "skip"}, FIVE[:3]),
        (NINE, {"ext": ("jpg", "seg.png;cls")}, FIVE),  # DALI takes the first member that fits as well
        ([("1.JPG", b"a"), ("1.cls", b"b")], {}, [[b"", b"b"]]),
        ([("1.JPG", b"a"), ("1.cls", b"b")], {"case_sensitive_extensions": False}, [[b"a", b"b"]]),
        ([("1.jpg", b"a"), ("1.jpg", b"b"), ("1.cls", b"c")], {}, [[b"a", b"c"]]),
        (
            [("1.jpg", b"a"), ("2.jpg", b"b"), ("1.cls", b"c"), ("2.cls", b"d")],
            {},
            [[b"a", b""], [b"b", b""], [b"", b"c"], [b"", b"d"]],
        ),
        ([("readme", b"a"), ("1.jpg", b"a"), ("1.cls", b"b")], {}, [[b"", b""], [b"a", b"b"]]),
        ([("a.b/1.jpg", b"a"), ("a.b/1.cls", b"b")], {}, [[b"a", b"b"]]),
        ([("./1.jpg", b"a"), ("./1.cls", b"b"), ("1.jpg", b"z")], {}, [[b"a", b"b"], [b"z", b""]]),
        ([("a/1.jpg", b"a"), ("b/1.cls", b"b")], {}, [[b"a", b""], [b"", b"b"]]),
        ([("1.jpg", b""), ("1.cls", b"x")], {}, [[b"", b"x"]]),
        ([("1.jpg", b"abcd")], {"ext": ("jpg", "jpg")}, [[b"abcd", b"abcd"]]),
        # unlike DALI: what begins with two underscores is about the archive
        ([("__meta.json", b"x"), ("2.jpg", b"q"), ("2.cls", b"r")], {}, [[b"q", b"r"]]),
    ],
)
def test_samples_equal_dali(tmp_path: Path, items: Items, arguments: dict[str, Any], expected: Any) -> None:
    path = tar(tmp_path / "a.tar", items)
    rows, rejects, _ = read(WebDataset(**{"paths": path, "ext": ("jpg", "cls"), **arguments}))
    assert rows == expected
    assert not rejects


def test_missing_parts_can_be_rejected(tmp_path: Path) -> None:
    reader = WebDataset(paths=tar(tmp_path / "a.tar", NINE), ext=("jpg", "cls"), missing_component_behavior="error")
    rows, rejects, keys = read(reader)
    assert rows[:3] == FIVE[:3]
    assert [(r.slot, r.code, r.message) for r in rejects] == [
        (3, "missing_feature", "the sample has no member with extension 'cls'"),
        (4, "missing_feature", "the sample has no member with extension 'jpg'"),
    ]
    assert keys == ["0001", "0002", "dir/0003", "0004", "0005"]


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("packed", [False, True])
def test_formats(tmp_path: Path, fmt: int, packed: bool) -> None:
    rng = np.random.default_rng(0)
    items = []
    for i in range(300):
        folder = "x" * int(rng.integers(1, 90)) + "/" + ("é" if fmt == tarfile.PAX_FORMAT else "e") * 30
        name = f"{folder}/{i:06d}" if fmt == tarfile.USTAR_FORMAT else f"{folder}/{'long' * (i % 70)}{i:06d}"
        items += [(f"{name}.jpg", rng.bytes(int(rng.integers(0, 3000)))), (f"{name}.cls", str(i).encode())]
    path = tar(
        tmp_path / "a.tar", items, fmt, {"comment": "of the whole archive"} if fmt == tarfile.PAX_FORMAT else None
    )
    if packed:
        Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))
    rows, rejects, keys = read(WebDataset(paths=path, ext=("jpg", "cls")))
    assert [part for row in rows for part in row] == [data for _, data in items]
    assert keys == [name.removesuffix(".jpg") for name, _ in items[::2]]
    assert not rejects


def test_several_archives(tmp_path: Path) -> None:
    for k in range(3):
        tar(tmp_path / f"t-{k}.tar", [(f"{i:03d}.jpg", f"{k}{i}".encode()) for i in range(k)])
    reader = WebDataset(paths=str(tmp_path / "t-*.tar"), ext=("jpg",))
    rows, _, keys = read(reader)
    assert rows == [[b"10"], [b"20"], [b"21"]]
    assert keys == ["t-1.tar/000#00000000", "t-2.tar/000#00000000", "t-2.tar/001#00000001"]
    source = reader.open()
    assert source.groups is not None
    assert source.groups.tolist() == [0, 1, 2]
    assert source.origin(2).offset == 1024
    (batch,), _ = fetch(reader, source, [2, 0], staging=True)
    assert content(batch) == [b"21", b"10"]


def test_names_of_a_batch_are_those_of_its_samples(tmp_path: Path) -> None:
    names = ["a.b/c.jpg", "a.b/é.jpg", ".hidden.jpg", "d/.jpg", "plain", "a#1.x.jpg", "last/e f.jpg"]
    for archives in ("one",), ("one", "two"):  # of two, no name is the only one of its kind
        for archive in archives:
            tar(tmp_path / f"{archive}.tar", [(name, b"x") for name in names])
        reader = WebDataset(paths=str(tmp_path / "*.tar"), ext=("jpg",), missing_component_behavior="empty")
        source = open_reader(reader)
        order = np.random.default_rng(3).permutation(len(source))
        fetch(reader, source, order)  # compares them
        assert source.keys(order) == [source.origin(i).key.encode() for i in order.tolist()]
        assert len(set(source.keys(order))) == len(source)


def test_numbers(tmp_path: Path) -> None:
    good, bad = struct.pack("<2f", 1.5, 2), b"abcde"
    path = tar(tmp_path / "a.tar", [("1.jpg", b"abcd"), ("1.f", good), ("2.jpg", b"x"), ("2.f", bad), ("3.jpg", b"y")])
    reader = WebDataset(paths=path, ext=("jpg", "f"), dtypes=(DALIDataType.INT8, DALIDataType.FLOAT))
    for staging in (False, True):
        (jpg, f), rejects = fetch(reader, open_reader(reader), range(3), staging)
        assert jpg.dtype == np.int8
        assert [s.tolist() for s in f] == [[1.5, 2.0], [], []]
        assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]


def test_dali_index_files(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", [("0001.jpg", b"j1"), ("0001.cls", b"3"), ("0002.cls", b"4"), ("0002.JPG", b"j2")])
    index = tmp_path / "a.idx"
    reader = WebDataset(paths=path, index_paths=str(index), ext=("jpg", "cls"), case_sensitive_extensions=False)
    index.write_text("v1.2 2\njpg 512 2 0001.jpg cls 1536 1 0001.cls\ncls 2560 1 0002.cls JPG 3584 2 0002.JPG\n")
    rows, rejects, keys = read(reader)
    assert rows == [[b"j1", b"3"], [b"j2", b"4"]]
    assert keys == ["0001", "0002"]
    index.write_text("v1.1 2\njpg 512 2 cls 1536 1\ncls 2560 1\n")
    rows, rejects, keys = read(reader)
    assert rows == [[b"j1", b"3"], [b"", b"4"]]
    assert keys == ["a.tar/00000000", "a.tar/00000001"]
    assert not rejects
    for text, message in (
        ("", ":1: needs 'v1.2"),
        ("v9 1\n", ":1: needs"),
        ("v1.2 1\njpg 512 2\n", ":2: needs extension, offset, size, name"),
        ("v1.2 1\njpg 512 x n\n", ":2: needs"),
        ("v1.2 1\njpg 99999999 2 n\n", ":2: .*does not lie"),
        ("v1.2 1\njpg 512 99999999999999999999 n\n", ":2: needs"),
    ):
        index.write_text(text)
        with pytest.raises(JobError, match=message):
            reader.open()
    with pytest.raises(JobError, match="1 index files for 2 archives"):
        WebDataset(paths=(path, path), index_paths=str(index), ext=("jpg",)).open()


def test_the_default_said_aloud_and_any_case(tmp_path: Path) -> None:
    """An empty list of indexes is none; DALI takes the behaviours in any case of letters."""
    paths = [tar(tmp_path / f"{name}.tar", [(f"{name}.jpg", b"j"), (f"{name}.cls", b"3"), (f"{name}2.jpg", b"k")])
             for name in "ab"]  # fmt: skip
    for said, expected in (("Empty", [0, 1, 2, 3]), ("SKIP", [0, 2])):
        reader = operator("readers.webdataset", paths=paths, index_paths=[], ext=["jpg", "cls"],
                          missing_component_behavior=said)  # fmt: skip
        rows, rejects, _ = read(reader)
        assert rows == [[[b"j", b"3"], [b"k", b""], [b"j", b"3"], [b"k", b""]][k] for k in expected]
        assert not rejects


def test_found_archives(shared_data: Path) -> None:
    """Archives of other projects: what tarfile reads is read, what it refuses is refused or read in part."""
    folder = shared_data / "corpus"
    with (folder / "MANIFEST.csv").open() as f:
        names = [r["path"] for r in csv.DictReader(f) if r["path"].startswith("webdataset/")]
    compared = 0
    for name in names:
        path = folder / name
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        expected: list[tuple[str, bytes]] | None = []
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                for member in archive:
                    if member.isreg():
                        file = archive.extractfile(member)
                        assert file is not None
                        expected.append((member.name, file.read()))
        except (tarfile.TarError, ValueError, OverflowError, EOFError):
            expected = None
        extensions = sorted({n.rpartition("/")[2].partition(".")[2] for n, _ in expected or []} - {""}) or ["x"]
        reader = WebDataset(paths=str(path), ext=tuple(extensions))
        try:
            rows, _, _ = read(reader)
        except JobError as e:
            assert str(path) in str(e)  # noqa: PT017 - either outcome is right
            assert expected is None or not any("." in n for n, _ in expected), path
            continue
        if expected is None:
            continue
        wanted = sorted(d for n, d in expected if n.rpartition("/")[2].partition(".")[2])
        assert sorted(part for row in rows for part in row if part) == [d for d in wanted if d], path
        compared += len(wanted)
    assert len(names) >= 30
    assert compared > 300


def test_every_damaged_header_byte_is_survived(tmp_path: Path) -> None:
    items = [(f"{i}.{e}", f"{i}{e}".encode() * 100) for i in range(3) for e in ("jpg", "cls")]
    path = tmp_path / "a.tar"
    tar(path, items)
    raw = path.read_bytes()
    reader = WebDataset(paths=str(path), ext=("jpg", "cls"))
    good = [[items[2 * i][1], items[2 * i + 1][1]] for i in range(3)]
    refused = 0
    for place in [*range(2048, 2560, 3), *range(0, len(raw), 397)]:
        damaged = bytearray(raw)
        damaged[place] ^= 0x5A
        path.write_bytes(damaged)
        os.utime(path, ns=(place, place))
        rows, rejects, _ = read(reader)
        if 2048 <= place < 2560:  # the second sample's first header
            assert good[0] in rows
            assert good[2] in rows
            refused += [r.code for r in rejects] == ["corrupt_record"]
    assert refused >= 165  # a header's checksum covers every byte of it; the rest reads as an old header


@pytest.mark.parametrize("zeros", [0, 600], ids=["text", "zeros at its end"])
def test_every_truncation(tmp_path: Path, zeros: int) -> None:
    items = [(f"{i}.jpg", f"{i}".encode() * (700 - zeros) + b"\0" * zeros) for i in range(3)]
    path = tmp_path / "a.tar"
    tar(path, items)
    raw = path.read_bytes()[: 3 * 1536]
    reader = WebDataset(paths=str(path), ext=("jpg",))
    for size in range(1, len(raw), 61):
        path.write_bytes(raw[:size])
        os.utime(path, ns=(size, size))
        whole = sum(size >= 1536 * i + 512 + 700 for i in range(3))
        if whole == 0:
            with pytest.raises(JobError, match=r"a\.tar: byte 0"):
                reader.open()
            continue
        rows, rejects, _ = read(reader)
        assert [r[0] for r in rows[:whole]] == [d for _, d in items[:whole]]
        assert len(rejects) <= 1
        assert all(r.code == "truncated" for r in rejects)
        assert len(rejects) == 1, size  # also in the padding of a member: what followed it is lost


@pytest.mark.parametrize("behavior", ["empty", "skip", "error"])
@pytest.mark.parametrize("last", ["2.cls", "2.txt", "3.txt", "__meta"])
def test_a_cut_archive_is_reported_whatever_is_cut(tmp_path: Path, behavior: Any, last: str) -> None:
    path = tmp_path / "a.tar"
    items = [("1.jpg", b"a"), ("1.cls", b"1"), ("2.jpg", b"b"), ("2.cls", b"2")]
    tar(path, [*(i for i in items if i[0] != last), (last, b"x" * 600)])
    size = 4 * 1024 + 512 if last != "2.cls" else 3 * 1024 + 512
    path.write_bytes(path.read_bytes()[: size + 512])
    rows, rejects, keys = read(WebDataset(paths=str(path), ext=("jpg", "cls"), missing_component_behavior=behavior))
    assert rows[0] == [b"a", b"1"]
    assert [(r.slot, r.code) for r in rejects] == [(len(rows) - 1, "truncated")]
    assert len(keys) == (2 if last.startswith("2") else 3)


def test_fuzzed_headers(tmp_path: Path) -> None:
    """Sizes, types and pax records that lie, with right checksums."""
    rng = np.random.default_rng(3)
    path = tmp_path / "a.tar"
    tar(
        path, [("p" * 150 + "/1.jpg", b"a" * 100), ("1.cls", b"b" * 600), ("é" * 80 + ".jpg", b"c")], tarfile.PAX_FORMAT
    )
    raw = path.read_bytes()
    reader = WebDataset(paths=str(path), ext=("jpg", "cls"))
    read_some = 0
    for k in range(150):
        damaged = bytearray(raw)
        header = int(rng.integers(0, len(raw) // 512)) * 512
        for _ in range(int(rng.integers(1, 4))):
            place = header + int(rng.choice([124, 125, 130, 135, 156, 257, 345, int(rng.integers(0, 512))]))
            damaged[place] = int(
                rng.choice([0, 0x80, 0xFF, 48, 55, 57, 75, 76, 83, 103, 120, int(rng.integers(0, 256))])
            )
        damaged[header + 148 : header + 156] = b" " * 8
        damaged[header + 148 : header + 156] = b"%06o\0 " % sum(damaged[header : header + 512])
        path.write_bytes(damaged)
        os.utime(path, ns=(k, k))
        try:
            read(reader)
        except JobError:
            continue
        read_some += 1
    assert read_some > 20


def test_base_256_sizes_and_sparse_members(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    tar(path, [("1.jpg", b"abc"), ("2.jpg", b"def"), ("3.jpg", b"ghi")], tarfile.GNU_FORMAT)
    raw = bytearray(path.read_bytes())

    def seal(at: int) -> None:
        raw[at + 148 : at + 156] = b" " * 8
        raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])

    raw[124:136] = b"\x80" + (3).to_bytes(11, "big")
    seal(0)
    raw[1024 + 156] = ord("S")
    seal(1024)
    path.write_bytes(raw)
    rows, rejects, _ = read(WebDataset(paths=str(path), ext=("jpg",)))
    assert rows == [[b"abc"], [b""], [b"ghi"]]
    assert [(r.slot, r.code) for r in rejects] == [(1, "unsupported")]


def test_index_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_cache, "WORTHWHILE", 0)
    path = tmp_path / "d" / "a.tar"
    path.parent.mkdir()
    tar(path, NINE)
    reader = WebDataset(paths=str(path), ext=("jpg", "cls"))
    fingerprint = reader.open().fingerprint()
    (cached,) = path.parent.glob(".*-index")
    assert reader.open().fingerprint() == fingerprint
    raw = cached.read_bytes()
    import zlib

    for place in range(13, 60):
        table = np.frombuffer(raw, "<i8").copy()
        table[place] = 2**60
        table[5] = zlib.crc32(table[6:].tobytes())
        cached.write_bytes(table.tobytes())
        assert read(reader)[0] == FIVE
        assert cached.read_bytes() == raw  # made anew
    tar(path, NINE[:2])
    assert read(reader)[0] == FIVE[:1]


def test_wrong_arguments(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"ext": ()},
        {"ext": ("jpg;",)},
        {"ext": ("jpg",), "dtypes": (DALIDataType.UINT8,) * 2},
        {"ext": ("jpg",), "dtypes": (DALIDataType.STRING,)},
        {"ext": ("jpg",), "paths": ()},
    ]
    for kwargs in wrong:
        with pytest.raises(SpecError):
            WebDataset(**{"paths": "x", **kwargs}).check()
    (tmp_path / "b.tar").write_bytes(b"not a tar" * 1000)
    with pytest.raises(JobError, match=r"b\.tar: byte 0: no member begins here .*is it a tar archive"):
        WebDataset(paths=str(tmp_path / "b.tar"), ext=("jpg",)).open()
    tar(tmp_path / "a.tar", NINE)
    rows, rejects, _ = read(WebDataset(paths=str(tmp_path / "*.tar"), ext=("jpg", "cls")))
    assert rows == [*FIVE, [b"", b""]]
    assert [(r.slot, r.code) for r in rejects] == [(5, "corrupt_record")]


# -- links ------------------------------------------------------------------------------------------------------------


def linked(path: Path, items: list[tuple[str, bytes | str, bytes]], fmt: int) -> str:
    """An archive of files (their bytes), and of links (their kind, and the target as text)."""
    with tarfile.open(path, "w", format=fmt) as archive:
        for name, data, kind in items:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(data, str):
                info.linkname = data
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return str(path)


@pytest.mark.parametrize("block", [1 << 15, 256])
@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_are_what_they_lead_to(tmp_path: Path, fmt: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member is a sample or a reject: GNU tar stores the second name of a file as a hard link."""
    monkeypatch.setattr("dali_run.readers.webdataset._BLOCK", block)
    deep = "d" * (60 if fmt == tarfile.USTAR_FORMAT else 180)
    hard, soft, file = tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.REGTYPE
    filler: list[tuple[str, bytes | str, bytes]] = [(f"f{k:04d}.jpg", b"f", file) for k in range(600)]
    path = linked(tmp_path / "a.tar", [
        ("a.jpg", b"first", file), ("b.jpg", "a.jpg", hard), ("c.jpg", "./b.jpg", hard), *filler,
        (f"{deep}/d.jpg", b"deep", file), ("e.jpg", f"{deep}/d.jpg", hard), (f"{deep}/f.jpg", "d.jpg", soft),
        (f"{deep}/g.jpg", "../a.jpg", soft), ("h.jpg", "/etc/passwd", soft), ("i.jpg", "later.jpg", hard),
        ("folder", "elsewhere", soft), ("j.jpg", "j.jpg", hard), ("k.jpg", "../a.jpg", soft),
        ("later.jpg", b"x", file),
    ], fmt)  # fmt: skip
    rows, rejects, keys = read(WebDataset(paths=path, ext=("jpg",)))
    bad = {keys[r.slot] for r in rejects}
    values = {k: row[0] for k, row in zip(keys, rows, strict=True) if not k.startswith("f0") and k not in bad}
    assert values == {
        "a": b"first", "b": b"first", "c": b"first", f"{deep}/d": b"deep", "e": b"deep", f"{deep}/f": b"deep",
        f"{deep}/g": b"first", "later": b"x",
    }  # fmt: skip
    assert {keys[r.slot]: r.code for r in rejects} == dict.fromkeys("hijk", "unsupported")
    assert len(keys) == 600 + 12


def test_a_sample_of_many_components_costs_as_much_for_each(tmp_path: Path) -> None:
    """Python's calls for a component, however many a sample has."""

    def calls(components: int) -> int:
        names = [f"c{k:04d}" for k in range(components)]
        path = tar(tmp_path / f"{components}.tar", [(f"{s}.{name}", b"x") for s in range(4) for name in names])
        counted = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        source = open_reader(reader := WebDataset(paths=path, ext=tuple(names)))
        sys.setprofile(count)
        try:
            batches, rejects = fetch(reader, source, range(4))
        finally:
            sys.setprofile(None)
        assert len(batches) == components
        assert not rejects
        return counted

    calls(8)  # what is imported and compiled once
    few, many = calls(50), calls(1000)
    assert many < 30 * few
