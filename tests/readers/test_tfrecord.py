"""readers.tfrecord against the tfrecord package, DALI's answers, damage of every kind, and found files."""

from __future__ import annotations

import csv
import gzip
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.gpu.uploads import Uploader
from dali_run.ops.storage.crc32c_cpu import masked_crc32c
from dali_run.readers import tfrecord_cpu
from dali_run.readers.fetch import index_cache
from dali_run.readers.tfrecord import TFRecord
from tests.kit.engine.small_pieces import shrink
from tests.kit.fake_cupy import faked
from tests.kit.files.containers import masked
from tests.kit.readers import content, fetch, open_reader

FEATURES = {
    "image": {"dtype": "string"},
    "label": {"dtype": "int64"},
    "box": {"dtype": "float", "var_len": True, "shape": [4]},
    "size": {"dtype": "int64", "shape": [2], "default": [-1, 7]},
    "weight": {"dtype": "float", "shape": [], "default": 0.5},
    "numbers": {"dtype": "int64", "var_len": True},
}


def write(path: Path, rows: list[dict[str, Any]]) -> list[int]:
    """Records by the tfrecord package; where each begins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tfrecord.writer import TFRecordWriter

        writer = TFRecordWriter(str(path))
        starts = []
        for row in rows:
            starts.append(writer.file.tell())
            writer.write(row)
        writer.close()
    return starts


def rows(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(n)
    out = []
    for i in range(n):
        row: dict[str, Any] = {
            "image": (rng.bytes(int(rng.integers(0, 9000))) + b"x", "byte"),
            "label": (i * 1_000_003 - 5, "int"),
            "other": ([b"a", b"b"], "byte"),
        }
        if i % 3:
            row["box"] = (rng.normal(size=4 * (i % 4)).astype(np.float32).tolist(), "float")
        if i % 2:
            row["size"] = ([i, -i], "int")
            row["weight"] = (float(i), "float")
        row["numbers"] = ([-(2**63), 2**63 - 1, 0, i][: i % 5], "int")
        out.append(row)
    return out


def check(row: dict[str, Any], outputs: list[Any]) -> None:
    image, label, box, size, weight, numbers = outputs
    assert image.tobytes() == row["image"][0]
    assert label.tolist() == [row["label"][0]]
    expected = np.array(row.get("box", ([],))[0], np.float32).reshape(-1, 4)
    np.testing.assert_array_equal(box, expected)
    assert size.tolist() == row.get("size", ([-1, 7],))[0]
    assert weight.shape == ()
    assert float(weight) == row.get("weight", (0.5,))[0]
    assert numbers.tolist() == row["numbers"][0]


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_the_tfrecord_package(tmp_path: Path, staging: bool, packed: bool) -> None:
    data = rows(50)
    for k, part in enumerate((data[:20], [], data[20:21], data[21:])):
        write(tmp_path / f"part-{k}.tfrecord", part)
    if packed:
        for path in tmp_path.glob("part*"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    reader = TFRecord(path=str(tmp_path / "part-*"), features=FEATURES)
    source = open_reader(reader)
    assert len(source) == 50
    assert source.groups is not None
    assert source.groups.tolist() == [20, 0, 1, 29]
    for index in (range(50), [49, 0, 0, 20, 21, 7], []):
        batches, rejects = fetch(reader, source, index, staging)
        assert not rejects
        for i, record in enumerate(index):
            check(data[record], [b.sample(i) for b in batches])
    assert [b.dtype for b in batches] == [np.uint8, np.int64, np.float32, np.int64, np.float32, np.int64]
    assert source.origin(21).key == "part-3.tfrecord/00000000"
    assert len({source.origin(i).key for i in range(50)}) == 50
    assert source.keys(np.arange(50)) == [source.origin(i).key.encode() for i in range(50)]


def test_whole_records_are_views(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    starts = write(path, rows(9))
    raw = path.read_bytes()
    reader = TFRecord(path=(str(path),))
    source = open_reader(reader)
    (batch,), _ = fetch(reader, source, [8, 3])
    for i, record in enumerate((8, 3)):
        (size,) = struct.unpack_from("<Q", raw, starts[record])
        assert batch.sample(i).tobytes() == raw[starts[record] + 12 : starts[record] + 12 + size]
        assert source.origin(record).offset == starts[record]
        assert source.origin(record).record == record
    source.close()
    del source
    assert batch.sample(0).tobytes()  # the mapping lives as long as its views


def test_dali_index_files(tmp_path: Path) -> None:
    path, index = tmp_path / "a.tfrecord", tmp_path / "a.idx"
    data = rows(9)
    starts = write(path, data)
    stops = [*starts[1:], path.stat().st_size]
    index.write_text("".join(f"{a} {b - a}\n" for a, b in zip(starts, stops, strict=True)))
    reader = TFRecord(path=str(path), index_path=str(index), features=FEATURES)
    source = open_reader(reader)
    batches, rejects = fetch(reader, source, range(9))
    assert not rejects
    for i, row in enumerate(data):
        check(row, [b.sample(i) for b in batches])
    for text, message in (
        ("0 100\nx 5\n", ":2: needs an offset and a length"),
        ("0 100\n5\n", ":2: needs"),
        (f"0 {10**30}\n", "needs|do not lie"),
        ("-5 20\n", "do not lie"),
        (f"0 {path.stat().st_size + 1}\n", "do not lie"),
        ("0 15\n", "do not lie"),
    ):
        index.write_text(text)
        with pytest.raises(JobError, match=message):
            reader.open()
    index.write_text(f"{starts[1] + 1} 40\n")  # inside the file, but not a record
    _, rejects = fetch(reader, reader.open(), [0])
    assert [r.code for r in rejects] == ["corrupt_record"]
    with pytest.raises(JobError, match="1 index files for 2"):
        TFRecord(path=(str(path), str(path)), index_path=str(index)).open()


def test_every_flipped_bit_is_found_and_costs_one_record(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    data = [{"image": (bytes([i]) * 9, "byte"), "label": (i, "int")} for i in range(4)]
    starts = write(path, data)
    raw = path.read_bytes()
    reader = TFRecord(path=str(path), features={"image": "string", "label": "int64"})
    for bit in range(0, 8 * len(raw), 5):  # five and eight have no common factor: all bits of bytes
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        os.utime(path, ns=(bit, bit))
        source = open_reader(reader)
        (image, label), rejects = fetch(reader, source, range(len(source)))
        victim = max(k for k in range(4) if starts[k] <= bit // 8)
        assert len(source) == 4, bit
        assert [(r.slot, r.code) for r in rejects] == [(victim, "corrupt_record")], bit
        assert source.origin(victim).offset == starts[victim]
        good = [k for k in range(4) if k != victim]
        assert [int(label.sample(k)[0]) for k in good] == good
        assert [image.sample(k).tobytes() for k in good] == [bytes([k]) * 9 for k in good]


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    data = [{"image": (bytes([i]) * 9, "byte")} for i in range(4)]
    starts = [*write(path, data), path.stat().st_size]
    raw = path.read_bytes()
    reader = TFRecord(path=str(path))
    for size in range(1, len(raw)):
        path.write_bytes(raw[:size])
        os.utime(path, ns=(size, size))
        whole = sum(stop <= size for stop in starts[1:])
        if whole == 0:
            with pytest.raises(JobError, match=r"a.tfrecord: byte 0: .*is it a TFRecord file"):
                reader.open()
            continue
        source = open_reader(reader)
        (batch,), rejects = fetch(reader, source, range(len(source)))
        lost = size - starts[whole]
        assert len(source) == whole + bool(lost)
        assert [r.slot for r in rejects] == [whole] * bool(lost)
        assert all(r.code in ("truncated", "corrupt_record") and f" {lost} bytes" in r.message for r in rejects)
        assert all(len(s) for s in content(batch)[:whole])


def test_reading_goes_on_behind_garbage(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    starts = write(path, [{"label": (i, "int")} for i in range(4)])
    raw = path.read_bytes()
    junk = np.random.default_rng(1).bytes(5000)
    path.write_bytes(raw[: starts[2]] + junk + raw[starts[2] :])
    reader = TFRecord(path=str(path), features={"label": "int64"})
    source = open_reader(reader)
    (labels,), rejects = fetch(reader, source, range(len(source)))
    assert [r.slot for r in rejects] == [2]
    assert "5000 bytes" in rejects[0].message
    assert source.origin(2).offset == starts[2]
    assert [int(labels.sample(i)[0]) for i in (0, 1, 3, 4)] == [0, 1, 2, 3]


def test_unchecked_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    starts = write(path, [{"label": (i, "int")} for i in range(3)])
    raw = bytearray(path.read_bytes())
    raw[starts[1] + 8] ^= 255  # the checksum of a length
    raw[-1] ^= 255  # the checksum of the last data
    path.write_bytes(raw)
    for checked, bad in ((True, [1, 2]), (False, [])):
        reader = TFRecord(path=str(path), features={"label": "int64"}, check_crc=checked)
        source = open_reader(reader)
        (labels,), rejects = fetch(reader, source, range(3))
        assert [r.slot for r in rejects] == bad
        assert [int(labels.sample(i)[0]) for i in range(3) if i not in bad] == [i for i in range(3) if i not in bad]


WANTED: dict[str, Any] = {
    "a picture": {"image": "string", "label": "int64"},
    "a text before it": {"text": "string", "image": "string", "label": "int64"},
    "numbers": {"label": "int64"},
    "a default": {"image": {"dtype": "string", "default": "none"}, "label": "int64"},
    "whole records": None,
}


@pytest.mark.parametrize("wanted", list(WANTED))
def test_damage_is_the_same_however_records_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """Seen where they lie, copied, or sent to a device: checksums are computed at different times, and a record whose
    bytes are wrong is refused for that, whatever else they do."""
    path, rng = tmp_path / "a.tfrecord", np.random.default_rng(4)
    starts = write(path, [
        {"image": (rng.bytes(300 + 900 * i), "byte"), "text": (b"text %d" % i, "byte"), "label": (i, "int")}
        for i in range(12)
    ])  # fmt: skip
    raw = bytearray(path.read_bytes())
    for i in (2, 7):
        raw[starts[i + 1] - 40] ^= 8  # a byte of the picture, or beside it
    raw[starts[4] + 12] ^= 255  # no Example any more
    raw[starts[5] + 8] ^= 1  # the checksum of a length
    for i in (6, 9):  # right checksums of what is no Example
        size = int.from_bytes(raw[starts[i] : starts[i] + 8], "little")
        raw[starts[i] + 12] ^= 255
        data = np.frombuffer(bytes(raw[starts[i] + 12 : starts[i] + 12 + size]), np.uint8)
        struct.pack_into("<I", raw, starts[i] + 12 + size, masked_crc32c(data, 0, size))
    path.write_bytes(raw)
    reader = TFRecord(path=str(path), features=WANTED[wanted])
    source, index = open_reader(reader), [*range(12), 3, 7]
    shrink(monkeypatch, 4 << 10)
    seen, rejects = fetch(reader, source, index)
    refused = {r.slot for r in rejects}
    assert refused == {2, 4, 5, 7, 13} | ({6, 9} if WANTED[wanted] else set())
    said = [(r.slot, r.code, r.message) for r in rejects]
    kept = [i for i in range(len(index)) if i not in refused]
    want = [[b.sample(i).tobytes() for i in kept] for b in seen]
    copied, rejects = fetch(reader, source, index, staging=True)
    assert [(r.slot, r.code, r.message) for r in rejects] == said
    assert [[b.sample(i).tobytes() for i in kept] for b in copied] == want
    told: list[str] = []
    with faked(memory=True, late=True):
        up, lane = Uploader(0, 1 << 30, lambda way, _: told.append(way)), Lane()
        sent, rejects = fetch(reader, source, index, staging=True, uploads=dict.fromkeys(range(3), up))
        assert [(r.slot, r.code, r.message) for r in rejects] == said
        assert [[b.sample(i).tobytes() for i in kept] for b in sent] == want
        there = [lane.to_host(lane.to_device(b.take(np.array(kept)))) for b in sent]
        lane.synchronize()
        assert [[s.tobytes() for s in b] for b in there] == want
        up.close()
    assert told == ["in pieces"] * {"a picture": 1, "a text before it": 2, "whole records": 1}.get(wanted, 0)


def test_features_that_are_not_as_declared(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write(
        path,
        [
            {"a": (b"x", "byte"), "n": ([1, 2], "int")},
            {"n": ([1, 2], "int")},
            {"a": (3, "int"), "n": ([1, 2], "int")},
            {"a": ([b"x", b"y"], "byte"), "n": ([1, 2], "int")},
            {"a": (b"x", "byte"), "n": ([1, 2, 3], "int")},
            {"a": (b"z", "byte"), "n": ([5, 6], "int")},
        ],
    )
    reader = TFRecord(path=str(path), features={"a": "string", "n": {"dtype": "int64", "shape": [2]}})
    (a, n), rejects = fetch(reader, open_reader(reader), range(6))
    assert [(r.slot, r.code) for r in rejects] == [
        (1, "missing_feature"),
        (2, "missing_feature"),
        (3, "bad_shape"),
        (4, "bad_shape"),
    ]
    assert [r.message for r in rejects] == [
        "has no feature 'a'; give it a default, or leave it out",
        "feature 'a' holds integers, not bytes",
        "feature 'a' holds 2 strings; one is allowed",
        "feature 'n' holds 3 values, which is not shape [2]",
    ]
    assert [a.sample(i).tobytes() for i in (0, 5)] == [b"x", b"z"]
    assert [n.sample(i).tolist() for i in (0, 5)] == [[1, 2], [5, 6]]
    scalar = TFRecord(path=str(path), features={"n": {"dtype": "int64", "shape": []}})
    (n,), rejects = fetch(scalar, open_reader(scalar), range(6))
    assert len(rejects) == 6
    assert n.ndim == 0
    default = TFRecord(path=str(path), features={"a": {"dtype": "string", "default": "none"}}, limit=2)
    (a,), rejects = fetch(default, open_reader(default), [1, 0])
    assert content(a) == [b"none", b"x"]
    assert not rejects


def varint(n: int) -> bytes:
    out = b""
    while True:
        n, low = n >> 7, n & 127
        out += bytes([low | (128 if n else 0)])
        if not n:
            return out


def message(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def framed(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def test_other_forms_of_the_same_message(tmp_path: Path) -> None:
    """Forms that protobuf allows: numbers not packed, unknown fields, split messages, repeated keys."""
    unpacked = message(3, b"".join(b"\x08" + varint(v & 2**64 - 1) for v in (1, -1, 300)))
    mixed = message(2, b"\x0d" + struct.pack("<f", 1.5) + message(1, struct.pack("<2f", 2.5, 3.5)) + message(9, b"zz"))
    unknown = varint(7 << 3) + varint(5) + varint(8 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4)
    old = message(1, message(2, message(3, b"\x08\x05")) + message(1, b"n"))
    entry_n = message(1, unknown + message(2, unpacked) + message(1, b"n"))
    entry_f = message(1, message(1, b"f") + message(2, mixed))
    record = unknown + message(1, old + entry_n) + unknown + message(1, unknown + entry_f)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed(record))
    reader = TFRecord(
        path=str(path), features={"n": {"dtype": "int64", "var_len": True}, "f": {"dtype": "float", "var_len": True}}
    )
    (n, f), rejects = fetch(reader, open_reader(reader), [0])
    assert not rejects
    assert n.sample(0).tolist() == [1, -1, 300]
    assert f.sample(0).tolist() == [1.5, 2.5, 3.5]


@settings(max_examples=100)
@given(st.data())
def test_hostile_messages_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    good = message(1, message(1, message(1, b"n") + message(2, message(3, message(1, b"\x01\xff\x01"))))) + message(
        1, message(1, message(1, b"s") + message(2, message(1, message(1, b"abc"))))
    )
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    path = tmp_path_factory.mktemp("fuzz") / "a.tfrecord"
    path.write_bytes(framed(bytes(raw)))
    reader = TFRecord(path=str(path), features={"n": {"dtype": "int64", "var_len": True}, "s": "string"})
    (n, s), rejects = fetch(reader, open_reader(reader), [0])
    assert len(rejects) <= 1
    assert len(s.sample(0)) <= len(raw)
    assert len(n.sample(0)) <= len(raw)


def test_the_index_is_cached_and_not_believed_blindly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_cache, "WORTHWHILE", 0)
    path = tmp_path / "data" / "a.tfrecord"
    path.parent.mkdir()
    write(path, rows(5))
    reader = TFRecord(path=str(tmp_path / "data" / "*"))
    assert len(reader.open()) == 5
    (cached,) = [p for p in path.parent.iterdir() if p != path]
    assert cached.name == ".a.tfrecord.tfrecord-index"
    first = reader.open()
    assert len(first) == 5  # the pattern does not match the index
    # a changed file
    fingerprint = first.fingerprint()
    write(path, rows(7))
    source = reader.open()
    assert len(source) == 7
    assert source.fingerprint() != fingerprint
    # an index that points elsewhere, checksums and all
    table = np.frombuffer(cached.read_bytes(), "<i8").copy()
    assert table[6:9].tolist() == [7, 7, 7]
    import zlib

    for place, value in ((9, 2**62), (9, -5), (16, 2**62), (16, -1), (23, 9), (9, 0), (6, 6), (6, -7)):
        forged = table.copy()
        forged[place] = value
        forged[5] = zlib.crc32(forged[6:].tobytes())
        cached.write_bytes(forged.tobytes())
        source = reader.open()
        _, rejects = fetch(reader, source, range(len(source)))
        assert len(source) == 7
        assert not rejects
    for junk in (b"", b"x" * 100, table.tobytes()[:-8], table.tobytes()[:-1] + b"\x01"):
        cached.write_bytes(junk)
        assert len(reader.open()) == 7


def test_a_file_cut_short_while_reading(tmp_path: Path) -> None:
    path, other = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"
    write(path, rows(200))
    write(other, rows(3))
    reader = TFRecord(path=(str(path), str(other)))
    source = open_reader(reader)
    os.truncate(path, 4096)
    (batch,), rejects = fetch(reader, source, [199, 200, 202])
    assert [(r.slot, r.code) for r in rejects] == [(0, "read_failed")]
    assert all(len(s) for s in content(batch)[1:])


@pytest.mark.parametrize("check", [True, False])
def test_records_of_more_bytes_than_a_batch_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, rows(40))
    reader = TFRecord(path=str(path), check_crc=check)
    source = open_reader(reader)
    sizes = source._sizes.tolist()
    limit = sorted(sizes)[20]
    monkeypatch.setattr("dali_run.readers.tfrecord.MAX_RECORD", limit)
    (batch,), rejects = fetch(reader, source, list(range(40)))
    large = [i for i, size in enumerate(sizes) if size > limit]
    assert 0 < len(large) < 20
    assert [(r.slot, r.code) for r in rejects] == [(i, "too_large") for i in large]
    assert rejects[0].message == f"the record has {sizes[large[0]]} bytes; at most {limit} are allowed"
    assert [len(s) for s in content(batch)] == [0 if size > limit else size for size in sizes]


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no file"):
        TFRecord(path=str(tmp_path / "none*")).open()
    with pytest.raises(JobError, match="not a file"):
        TFRecord(path=str(tmp_path)).open()
    wrong: list[tuple[Any, str]] = [
        ({}, "empty"),
        ({"a": "double"}, "feature 'a': 'double' is not a type .*string, float, int64"),
        ({"a": {"shape": [1]}}, "needs a mapping with a dtype"),
        ({"a": {"dtype": "int64", "size": 3}}, "has no key 'size'"),
        ({"a": {"dtype": "int64", "shape": [-1]}}, "list of sizes"),
        ({"a": {"dtype": "int64", "shape": [2], "default": [1, 2, 3]}}, "is not a default"),
        ({"a": {"dtype": "int64", "default": "x"}}, "is not a default"),
        ({"a": {"dtype": "string", "shape": [2]}}, "holds one value"),
        ({"a": {"dtype": "float", "var_len": True, "default": 1}}, "no default"),
    ]
    for features, text in wrong:
        with pytest.raises(SpecError, match=text):
            TFRecord(path="x", features=features).check()


def test_found_files(shared_data: Path) -> None:
    """Files of other projects, as many records as another reader counted in them."""
    folder = shared_data / "corpus"
    with (folder / "MANIFEST.csv").open() as f:
        table = [r for r in csv.DictReader(f) if next(iter(r.values())).startswith("tfrecord/")]
    seen = 0
    for row in table:
        text = ",".join(str(v) for v in row.values())
        expected = int(text.split("tfr: ok n=")[1].split()[0])
        reader = TFRecord(path=str(folder / next(iter(row.values()))))
        source = open_reader(reader)
        (batch,), rejects = fetch(reader, source, range(len(source)))
        assert len(source) == len(batch) == expected
        assert not rejects
        seen += 1
    assert seen >= 15


def test_a_damaged_packing_costs_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, rows(60))
    packed = gzip.compress(path.read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    reader = TFRecord(path=str(path), features=FEATURES)
    source = open_reader(reader)
    _, rejects = fetch(reader, source, range(len(source)))
    assert 10 < len(source) < 60
    assert [r.slot for r in rejects] == [len(source) - 1]
    assert "gzip" in rejects[0].message


def test_not_a_container(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.tfrecord", tmp_path / "b.jpg"
    write(good, rows(2))
    bad.write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)) * 50)
    with pytest.raises(JobError, match=r"b\.jpg: byte 0: no record begins"):
        TFRecord(path=str(bad)).open()
    reader = TFRecord(path=(str(bad), str(good)))
    source = open_reader(reader)
    _, rejects = fetch(reader, source, range(3))
    assert [(r.slot, r.code) for r in rejects] == [(0, "corrupt_record")]
    assert source.origin(0).source == str(bad)


def test_names_as_in_dali(tmp_path: Path) -> None:
    import dali_run.tfrecord as tfrec

    path = tmp_path / "a.tfrecord"
    data = rows(6)
    write(path, data)
    features = {
        "image": tfrec.FixedLenFeature((), tfrec.string, ""),
        "label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
        "box": tfrec.VarLenFeature([4], tfrec.float32, 0.0),
        "size": tfrec.FixedLenFeature([2], tfrec.int64, [-1, 7]),
        "weight": tfrec.FixedLenFeature([], tfrec.float32, 0.5),
        "numbers": tfrec.VarLenFeature(tfrec.int64, 0),
    }
    reader = TFRecord(path=str(path), features=features)
    assert reader.output_names == tuple(features)
    assert features["numbers"] == tfrec.VarLenFeature(dtype=tfrec.int64)
    assert features["box"] == tfrec.VarLenFeature(partial_shape=(4,), dtype=tfrec.float32)
    batches, rejects = fetch(reader, open_reader(reader), range(6))
    assert not rejects
    for i, row in enumerate(data):
        check(row, [b.sample(i) for b in batches])


def test_the_python_function_gives_a_mapping(tmp_path: Path) -> None:
    import dali_run.fn as fn
    import dali_run.tfrecord as tfrec
    from dali_run.pipeline import Pipeline, pipeline_def

    path = tmp_path / "a.tfrecord"
    write(path, rows(6))

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> Any:
        features = {
            "label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
            "image": tfrec.FixedLenFeature((), tfrec.string, b""),
        }
        inputs = fn.readers.tfrecord(path=str(path), features=features)
        return inputs["image"], inputs["label"]

    first = pipeline()
    for pipe in (first, Pipeline.deserialize(first.serialize())):
        pipe.build()
        image, label = pipe.run()
        assert image.at(2).tobytes() == rows(6)[2]["image"][0]
        assert label.at(2).tolist() == [rows(6)[2]["label"][0]]


@pytest.mark.parametrize("filler", [bytes(1 << 20), b"\1" + bytes((1 << 20) - 1)])
def test_a_packed_bomb_is_left_early(tmp_path: Path, filler: bytes) -> None:
    """300 MB in 300 kB: little of it is unpacked, and looked through for records; what came before is read."""
    good = tmp_path / "good.tfrecord"
    write(good, rows(2))
    packed = gzip.compress(good.read_bytes() + filler * 300, 9)
    (tmp_path / "bomb.tfrecord").write_bytes(packed)
    source = open_reader(TFRecord(path=str(tmp_path / "bomb.tfrecord"), features={"id": "int64"}))
    assert source._mapped.sizes.sum() <= 48 << 20
    assert len(source) == 3


def test_a_packed_bomb_that_hides_is_left_early(tmp_path: Path) -> None:
    """Work is bounded, not only bytes: 480 unpacked bytes for each packed one are too many from 64 MiB on, and records
    are looked for in 16 MiB of the damage. Those that come before, or soon after, are read."""
    good = tmp_path / "good.tfrecord"
    write(good, rows(2))
    noise = np.random.default_rng(1).integers(0, 256, (100, 1150), np.uint8)
    filler = b"".join(n.tobytes() + (b"\1" + bytes(7)) * (1 << 17) for n in noise)
    packed = gzip.compress(good.read_bytes() + filler[: 1 << 20] + good.read_bytes() + filler, 9)
    assert 300 < len(filler) / len(packed) < 500
    (tmp_path / "bomb.tfrecord").write_bytes(packed)
    reader = TFRecord(path=str(tmp_path / "bomb.tfrecord"), features={"label": "int64"})
    source = open_reader(reader)
    assert source._mapped.sizes.sum() <= 66 << 20
    assert source._kinds.tolist() == [0, 0, tfrecord_cpu.LOST, 0, 0, tfrecord_cpu.LOST]
    _, rejects = fetch(reader, source, range(6))
    assert [r.slot for r in rejects] == [2, 5]
    few = np.frombuffer(good.read_bytes() + filler[: 1 << 20] + good.read_bytes(), np.uint8).copy()
    for search, found in ((len(few), 5), (len(filler[: 1 << 20]), 5), (1000, 3), (0, 3)):
        offsets, sizes, kinds = np.empty(9, np.int64), np.empty(9, np.int64), np.empty(9, np.int32)
        n, at, left = tfrecord_cpu.walk(few, 0, len(few), search, True, offsets, sizes, kinds)
        assert (n, at, kinds[2]) == (found, len(few), tfrecord_cpu.LOST)
        assert left == (search - (1 << 20) if found == 5 else 0)


def test_a_packed_file_says_what_was_not_looked_through(tmp_path: Path) -> None:
    good = tmp_path / "good.tfrecord"
    write(good, rows(2))
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(good.read_bytes() + (b"\1" + bytes(99)) * 200_000, 9))
    reader = TFRecord(path=str(tmp_path / "a.tfrecord"), features={"label": "int64"})
    _, rejects = fetch(reader, open_reader(reader), range(3))
    assert "no record begins in the 16777216 bytes from here; the other 3222784 bytes are lost" in rejects[-1].message
