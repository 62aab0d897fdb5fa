"""readers.mxnet: records written by the format's definition, DALI's answers, and damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.errors import JobError
from dali_run.readers import recordio_cpu
from dali_run.readers.fetch import index_cache
from dali_run.readers.mxnet import MXNet
from tests.kit.readers import content, fetch, open_reader

MAGIC = struct.pack("<I", 0xCED7230A)


def part(kind: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def record(payload: bytes) -> bytes:
    """As dmlc-core writes it: cut where the magic number stands at a multiple of four."""
    cuts = [k for k in range(0, len(payload) - 3, 4) if payload[k : k + 4] == MAGIC]
    if not cuts:
        return part(0, payload)
    starts, stops = [0, *(c + 4 for c in cuts)], [*cuts, len(payload)]
    pieces = [payload[a:b] for a, b in zip(starts, stops, strict=True)]
    kinds = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(part(k, p) for k, p in zip(kinds, pieces, strict=True))


def image(label: float | list[float], data: bytes, number: int = 0) -> bytes:
    labels = label if isinstance(label, list) else []
    header = struct.pack("<IfQQ", len(labels), 0 if labels else label, number, 0)
    return header + struct.pack(f"<{len(labels)}f", *labels) + data


def images(n: int) -> list[tuple[list[float], bytes]]:
    rng = np.random.default_rng(n)
    out = []
    for i in range(n):
        data = rng.bytes(int(rng.integers(0, 3000)))
        if i % 5 == 4:  # with magic numbers inside, some where they count
            data = data[:40] + MAGIC + data[44:100] + MAGIC + MAGIC + data[108:] + b"x" * (i % 4) + MAGIC
        out.append(([i + 0.5] if i % 3 else [1.5, 2.5, float(i)], data))
    return out


def write(path: Path, rows: list[tuple[list[float], bytes]]) -> list[int]:
    starts, out = [], b""
    for i, (labels, data) in enumerate(rows):
        starts.append(len(out))
        out += record(image(labels if len(labels) > 1 else labels[0], data, i))
    path.write_bytes(out)
    return starts


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_images_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staging: bool, indexed: bool) -> None:
    monkeypatch.setattr(index_cache, "WORTHWHILE", 0)
    rows = images(40)
    index = []
    for k, some in enumerate((rows[:15], rows[15:])):
        starts = write(tmp_path / f"{k}.rec", some)
        (tmp_path / f"{k}.idx").write_text("".join(f"{i}\t{s}\n" for i, s in reversed(list(enumerate(starts)))))
        index += starts
    reader = MXNet(path=str(tmp_path / "*.rec"), index_path=str(tmp_path / "*.idx") if indexed else None)
    for _ in range(2):  # the second time by the cached index
        source = open_reader(reader)
        assert source.groups is not None
        assert source.groups.tolist() == [15, 25]
        for which in (range(40), [3, 2, 1], [39, 4], []):
            (data, labels), rejects = fetch(reader, source, which, staging)
            assert content(data) == [rows[i][1] for i in which]
            assert [s.tolist() for s in labels] == [rows[i][0] for i in which]
            assert labels.dtype == np.float32
            assert not rejects
    assert [source.origin(i).offset for i in range(40)] == index
    assert len(list(tmp_path.glob(".*-index"))) == (0 if indexed else 2)
    assert source.origin(15).key == "1.rec/00000000"


def test_damage_costs_its_record(tmp_path: Path) -> None:
    rows = images(4)  # of one part each
    path = tmp_path / "a.rec"
    starts = write(path, rows)
    raw = path.read_bytes()
    reader = MXNet(path=str(path))
    for place in range(starts[1], starts[1] + 8):
        damaged = bytearray(raw)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        os.utime(path, ns=(place, place))
        source = open_reader(reader)
        (data, _), rejects = fetch(reader, source, range(len(source)))
        if place in (starts[1] + 4,):  # a length that is a little wrong: the record and what it reaches into
            assert rows[0][1] in content(data)
            continue
        assert [(r.slot, r.code) for r in rejects] == [(1, "corrupt_record")], place
        assert source.origin(1).offset == starts[1]
        assert [content(data)[k] for k in (0, 2, 3)] == [rows[k][1] for k in (0, 2, 3)]


def test_every_truncation(tmp_path: Path) -> None:
    rows = [([float(i)], bytes([i]) * 30) for i in range(3)]
    path = tmp_path / "a.rec"
    starts = [*write(path, rows), path.stat().st_size]
    raw = path.read_bytes()
    reader = MXNet(path=str(path))
    for size in range(1, len(raw)):
        path.write_bytes(raw[:size])
        os.utime(path, ns=(size, size))
        whole = sum(stop - 2 <= size for stop in starts[1:])  # the padding may be missing at the end
        if whole == 0:
            with pytest.raises(JobError, match=r"a\.rec: byte 0: .* is it a RecordIO file"):
                reader.open()
            continue
        source = open_reader(reader)
        (data, _), rejects = fetch(reader, source, range(len(source)))
        assert content(data)[:whole] == [d for _, d in rows[:whole]]
        assert len(rejects) == (size > starts[whole])
        assert [r.slot for r in rejects] in ([], [whole])


def test_records_that_are_no_images(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    bad = [b"", b"short", struct.pack("<IfQQ", 5, 0, 0, 0) + b"x" * 19, struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0)]
    path.write_bytes(b"".join(map(record, [image(1, b"good"), *bad, image(2, b"")])))
    reader = MXNet(path=str(path))
    (data, labels), rejects = fetch(reader, open_reader(reader), range(6))
    assert [(r.slot, r.code) for r in rejects] == [(i, "corrupt_record") for i in (1, 2, 3, 4)]
    assert (content(data)[0], content(data)[5]) == (b"good", b"")
    assert labels.sample(5).tolist() == [2.0]


def test_parts_that_many_records_share_are_not_followed_for_each(tmp_path: Path) -> None:
    """Many records begin that all go on with the same parts, which have no end: 640 kB took 10 s of processor time."""
    good = [record(image(k, b"good")) for k in range(3)]

    def shared(starts: int, parts: int) -> bytes:
        begin = [MAGIC + struct.pack("<I", 1 << 29 | 8 * (starts - k - 1)) for k in range(starts)]
        return b"".join(begin) + part(2, b"") * parts

    def walked(data: bytes) -> tuple[list[int], int, int]:
        rows, most = np.empty((99, recordio_cpu.COLUMNS), np.int64), len(data) // 4 + 1
        n, at, left = recordio_cpu.walk(np.frombuffer(bytearray(data), np.uint8), 0, len(data), most, rows)
        assert at == len(data)
        return rows[:n, recordio_cpu.KIND].tolist(), most - left, most

    kinds, tried, most = walked(good[0] + shared(4000, 4000) + good[1] + good[2])
    assert kinds == [recordio_cpu.GOOD, recordio_cpu.LOST]
    assert most <= tried < most + 4002
    kinds, tried, most = walked(good[0] + shared(1, 4000) + good[1] + good[2])
    assert kinds == [recordio_cpu.GOOD, recordio_cpu.LOST, recordio_cpu.GOOD, recordio_cpu.GOOD]
    assert tried == 4001


def test_fuzz(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.rec"
    write(path, images(12))
    raw = path.read_bytes()
    reader = MXNet(path=str(path))
    refused = 0
    for k in range(150):
        damaged = bytearray(raw[: int(rng.integers(1, len(raw)))] if k % 5 == 0 else raw)
        for place in rng.integers(0, len(damaged), 20).tolist():
            damaged[place] = int(rng.integers(0, 256))
        at = int(rng.integers(0, len(damaged) // 4)) * 4
        damaged[at : at + 4] = MAGIC
        path.write_bytes(damaged)
        os.utime(path, ns=(k, k))
        try:
            source = reader.open()
        except JobError:
            continue
        _, rejects = fetch(reader, source, range(len(source)))
        refused += bool(rejects)
    assert refused > 30


def test_bad_index_files(tmp_path: Path) -> None:
    path, index = tmp_path / "a.rec", tmp_path / "a.idx"
    starts = write(path, images(3))
    reader = MXNet(path=str(path), index_path=str(index))
    for text, message in (
        ("0\t0\nx\n", ":2: needs a key and an offset"),
        ("0 -1\n", ":1: needs"),
        ("0 99999999\n", "does not lie"),
    ):
        index.write_text(text)
        with pytest.raises(JobError, match=message):
            reader.open()
    index.write_text(f"0 0\n1 {starts[1] + 4}\n")
    _, rejects = fetch(reader, reader.open(), [0, 1])
    assert [(r.slot, r.code) for r in rejects] == [(1, "corrupt_record")]
