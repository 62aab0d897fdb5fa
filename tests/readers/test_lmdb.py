"""readers.lmdb, caffe and caffe2 against the lmdb package, DALI's answers, and damaged databases."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.fetch import index_cache
from dali_run.readers.lmdb import LMDB, Caffe, Caffe2
from tests.kit.readers import content, fetch, open_reader


def varint(n: int) -> bytes:
    out = b""
    while True:
        n, low = n >> 7, n & 127
        out += bytes([low | (128 if n else 0)])
        if not n:
            return out


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & 2**64 - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


def database(path: Path, values: list[bytes] | dict[bytes, bytes]) -> str:
    records = values if isinstance(values, dict) else {b"%04d" % i: v for i, v in enumerate(values)}
    with lmdb.open(str(path), map_size=1 << 27) as env, env.begin(write=True) as txn:
        for key, value in records.items():
            txn.put(key, value)
    return str(path)


@pytest.mark.parametrize("staging", [False, True])
def test_equals_the_lmdb_package(tmp_path: Path, staging: bool) -> None:
    rng = np.random.default_rng(0)
    path = str(tmp_path / "db")
    with lmdb.open(path, map_size=1 << 27) as env:
        for _ in range(3):  # grow, change and delete, so that pages are used again
            with env.begin(write=True) as txn:
                for i in rng.integers(0, 6000, 3000).tolist():
                    key = str(i).encode() * (1 + i % 7)
                    if rng.random() < 0.2:
                        txn.delete(key)
                    else:
                        txn.put(key, rng.bytes(int(rng.choice([0, 1, 100, 2000, 2030, 4080, 4081, 9000]))))
        with env.begin() as txn:
            expected = list(txn.cursor())
            assert txn.stat()["depth"] >= 3
    for name in (path, os.path.join(path, "data.mdb")):
        reader = LMDB(path=name)
        source = open_reader(reader)
        assert [source.origin(i).key.encode() for i in range(len(source))] == [k for k, _ in expected]
        (values,), rejects = fetch(reader, source, range(len(source)), staging)
        assert content(values) == [v for _, v in expected]
        assert not rejects
        some = rng.integers(0, len(source), 50)
        (values,), _ = fetch(reader, source, some, staging)
        assert content(values) == [expected[i][1] for i in some]


def test_several_databases_and_patterns_of_keys(tmp_path: Path) -> None:
    database(tmp_path / "b", {b"image-1": b"one", b"label-1": b"1", b"num-samples": b"1"})
    database(tmp_path / "a", {b"image-2": b"two", b"\xff": b"odd"})
    database(tmp_path / "c", {})
    reader = LMDB(path=str(tmp_path / "*"))
    source = open_reader(reader)
    assert source.groups is not None
    assert source.groups.tolist() == [2, 3, 0]
    keys = [source.origin(i).key for i in range(5)]
    assert keys == ["a/image-2", "a/\\xff", "b/image-1", "b/label-1", "b/num-samples"]
    reader = LMDB(path=(str(tmp_path / "b"), str(tmp_path / "a")), keys=("image-*",))
    source = open_reader(reader)
    (values,), _ = fetch(reader, source, range(2))
    assert content(values) == [b"one", b"two"]
    assert (source.origin(1).source, source.origin(1).record) == (str(tmp_path / "a"), 0)
    assert source.origin(1).source_info == f"{tmp_path}/a at key {source.origin(1).key.removeprefix('a/')}"
    assert len(open_reader(LMDB(path=str(tmp_path / "c")))) == 0


def test_fingerprint_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index_cache, "WORTHWHILE", 0)
    path = database(tmp_path / "db", [b"a", b"b"])
    reader = LMDB(path=path)
    first = reader.open().fingerprint()
    assert reader.open().fingerprint() == first
    (cached,) = Path(path).glob(".*-index")
    table = np.frombuffer(cached.read_bytes(), "<i8").copy()
    import zlib

    for place, value in ((11, 2**62), (15, -8), (17, 2**40), (6, 1)):
        forged = table.copy()
        forged[place] = value
        forged[5] = zlib.crc32(forged[6:].tobytes())
        cached.write_bytes(forged.tobytes())
        (values,), rejects = fetch(reader, reader.open(), [0, 1])
        assert content(values) == [b"a", b"b"]
        assert not rejects
    database(tmp_path / "db", [b"a", b"c"])
    source = reader.open()
    assert source.fingerprint() != first
    assert content(fetch(reader, source, [1])[0][0]) == [b"c"]


def test_what_is_not_a_plain_record(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with lmdb.open(path, map_size=1 << 24, max_dbs=2) as env:
        child = env.open_db(b"child")
        with env.begin(write=True) as txn:
            txn.put(b"x", b"y", db=child)
            txn.put(b"plain", b"value")
    reader = LMDB(path=path)
    source = open_reader(reader)
    (values,), rejects = fetch(reader, source, range(2))
    assert content(values) == [b"", b"value"]
    assert [(r.slot, r.code) for r in rejects] == [(0, "unsupported")]
    path = str(tmp_path / "dup")
    with lmdb.open(path, map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"x", b"y")
    raw = bytearray(Path(path, "data.mdb").read_bytes())
    for page in (0, 4096):
        raw[page + 92] |= 4  # DUPSORT of the main database
    Path(path, "data.mdb").write_bytes(raw)
    with pytest.raises(JobError, match="several values"):
        LMDB(path=path).open()


def test_damage_is_survived(tmp_path: Path) -> None:
    """Any byte may be wrong: every record is read or rejected, nothing crashes or hangs."""
    rng = np.random.default_rng(1)
    path = tmp_path / "db"
    values = [rng.bytes(int(n)) for n in rng.choice([10, 500, 5000], 300)]
    database(path, values)
    file = path / "data.mdb"
    raw = file.read_bytes()
    reader = LMDB(path=str(path))
    whole, broken, lost = 0, 0, 0
    for k in range(150):
        damaged = bytearray(raw)
        if k % 4 == 0:
            del damaged[int(rng.integers(1, len(raw))) :]
        for _ in range(1 if k % 2 else 30):
            page = int(rng.integers(0, len(damaged) // 4096 + 1)) * 4096
            place = min(page + int(rng.integers(0, 64 if k % 3 else 4096)), len(damaged) - 1)
            damaged[place] = int(rng.choice([0, 1, 2, 255, int(rng.integers(0, 256))]))
        file.write_bytes(damaged)
        os.utime(file, ns=(k, k))
        try:
            source = reader.open()
        except JobError:
            lost += 1
            continue
        assert len(source) < 5000
        (batch,), rejects = fetch(reader, source, range(len(source)))
        assert all(len(batch.sample(r.slot)) == 0 for r in rejects)
        assert all(len(source.origin(i).key) < 5 * 4096 for i in range(len(source)))
        whole += not rejects
        broken += bool(rejects)
    assert whole > 10
    assert broken > 10
    assert lost > 0


def test_a_loop_of_pages_ends(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database(path, {b"%06d" % i: b"v" * 500 for i in range(2000)})
    raw = bytearray((path / "data.mdb").read_bytes())
    meta = max((0, 4096), key=lambda at: struct.unpack_from("<Q", raw, at + 144)[0])
    (root,) = struct.unpack_from("<Q", raw, meta + 128)
    (node,) = struct.unpack_from("<H", raw, root * 4096 + 16)
    struct.pack_into("<HHH", raw, root * 4096 + node, root & 0xFFFF, root >> 16, 0)  # the first child is the root
    (path / "data.mdb").write_bytes(raw)
    reader = LMDB(path=str(path))
    source = open_reader(reader)
    _, rejects = fetch(reader, source, range(len(source)))
    assert [(r.slot, r.code) for r in rejects] == [(0, "corrupt_record")]
    assert 100 < len(source) < 2001


def test_one_bad_database_among_good_ones(tmp_path: Path) -> None:
    database(tmp_path / "good", [b"a"])
    (tmp_path / "bad").mkdir()
    for junk in (b"", b"x" * 20000):
        (tmp_path / "bad" / "data.mdb").write_bytes(junk)
        with pytest.raises(JobError, match=r"data.mdb: byte 0: cannot be read as LMDB"):
            LMDB(path=str(tmp_path / "bad")).open()
        reader = LMDB(path=(str(tmp_path / "bad"), str(tmp_path / "good")))
        (values,), rejects = fetch(reader, open_reader(reader), [0, 1])
        assert content(values) == [b"", b"a"]
        assert [(r.slot, r.code) for r in rejects] == [(0, "corrupt_record")]
        assert "cannot be read as LMDB" in rejects[0].message
    with pytest.raises(JobError, match="there is no file"):
        LMDB(path=str(tmp_path / "none")).open()
    with pytest.raises(JobError, match=r"data\.mdb cannot be opened"):
        LMDB(path=str(tmp_path)).open()


def test_a_damaged_value_is_noticed_by_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database(path, [b"a" * 9000, b"b" * 9000])
    reader = LMDB(path=str(path))
    source = open_reader(reader)
    raw = bytearray((path / "data.mdb").read_bytes())
    raw[source.origin(0).offset - 16 + 12] = 1  # pages of the value
    (path / "data.mdb").write_bytes(raw)
    _, rejects = fetch(reader, open_reader(reader), [0, 1])
    assert [(r.slot, r.code) for r in rejects] == [(0, "corrupt_record")]


def test_a_database_cut_short_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database(path, [b"a" * 9000, b"b" * 9000])
    reader = LMDB(path=str(path))
    source = open_reader(reader)
    os.truncate(path / "data.mdb", 8192)
    _, rejects = fetch(reader, source, [0, 1])
    assert [(r.slot, r.code) for r in rejects] == [(0, "read_failed"), (1, "read_failed")]


def test_found_databases(shared_data: Path) -> None:
    expected = {"basicsr/lq.lmdb": 2, "mmcv_demo.lmdb": 1, "mmocr/broken.lmdb": 3}
    for name, count in expected.items():
        path = str(shared_data / "corpus" / "lmdb" / name)
        with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
            records = list(txn.cursor())
        reader = LMDB(path=path)
        source = open_reader(reader)
        (values,), rejects = fetch(reader, source, range(len(source)))
        assert len(source) == count
        assert [(source.origin(i).key.encode(), v) for i, v in enumerate(content(values))] == records
        assert not rejects


def test_examples(tmp_path: Path) -> None:
    record = field(1, field(1, field(1, b"n") + field(2, field(3, field(1, b"\x07\x08")))))
    reader = LMDB(
        path=database(tmp_path / "db", [record, b"\xff\xff", b""]),
        schema="example",
        features={"n": {"dtype": "int64", "var_len": True}},
    )
    (n,), rejects = fetch(reader, open_reader(reader), range(3))
    assert [s.tolist() for s in n] == [[7, 8], [], []]
    assert [(r.slot, r.code) for r in rejects] == [(1, "corrupt_record")]


def test_caffe(tmp_path: Path) -> None:
    # DALI 2.4 gives the bytes and int32 labels of shape (1,), in the order of the keys
    encoded = {k: field(4, b"jpeg" + k) + field(5, i) + field(7, 1) for i, k in enumerate((b"10", b"9", b"1"))}
    reader = Caffe(path=database(tmp_path / "a", encoded))
    (images, labels), rejects = fetch(reader, open_reader(reader), range(3))
    assert content(images) == [b"jpeg1", b"jpeg10", b"jpeg9"]
    assert labels.dtype == np.int32
    assert labels.dense().tolist() == [[2], [0], [1]]
    assert not rejects
    pixels = bytes(range(12))
    raw = field(1, 3) + field(2, 2) + field(3, 2) + field(4, pixels) + field(5, -3) + field(7, 0)
    mixed = [raw, encoded[b"1"], field(4, b"abc"), field(5, 4), b"\xff\xff", raw[:-3], field(1, 1 << 63) + raw[2:]]
    path = database(tmp_path / "b", mixed)
    reader = Caffe(path=path)
    (images, labels), rejects = fetch(reader, open_reader(reader), range(7))
    assert {r.slot: r.code for r in rejects} == {
        0: "unsupported",
        2: "missing_feature",
        3: "missing_feature",
        4: "corrupt_record",
        5: "corrupt_record",
        6: "unsupported",
    }
    assert images.sample(1).tobytes() == b"jpeg1"
    reader = Caffe(path=path, encoded=False)
    (images, labels), rejects = fetch(reader, open_reader(reader), range(7))
    assert sorted(r.slot for r in rejects) == [1, 2, 3, 4, 5, 6]
    assert [r.code for r in rejects if r.slot == 6] == ["bad_shape"]
    assert images.layout == "CHW"
    assert images.sample(0).tolist() == np.arange(12).reshape(3, 2, 2).tolist()
    assert labels.sample(0).tolist() == [-3]
    (labels,), rejects = fetch(r := Caffe(path=path, image_available=False), open_reader(r), range(4))
    assert [(x.slot, x.code) for x in rejects] == [(2, "missing_feature")]
    (images,), rejects = fetch(r := Caffe(path=path, label_available=False), open_reader(r), [1, 2])
    assert content(images) == [b"jpeg1", b"abc"]
    (images, labels), _ = fetch(r := LMDB(path=path, schema="datum"), open_reader(r), [1])
    assert (content(images), labels.data.tolist()) == ([b"jpeg1"], [2])


def tensor(
    kind: int,
    dims: tuple[int, ...],
    *,
    floats: list[float] | None = None,
    ints: list[int] | None = None,
    data: bytes | None = None,
    string: bytes | None = None,
) -> bytes:
    out = b"".join(field(1, d) for d in dims) + field(2, kind)
    if floats is not None:
        out += field(3, struct.pack(f"<{len(floats)}f", *floats))
    if ints is not None:
        out += field(4, b"".join(varint(i & 2**64 - 1) for i in ints))
    if data is not None:
        out += field(5, data)
    if string is not None:
        out += field(6, string)
    return field(1, out)


IMAGE = tensor(4, (1,), string=b"JPEG")


@pytest.mark.parametrize(
    ("record", "arguments", "expected"),
    [  # answers of DALI 2.4, but label types 1 and 3, which it cannot read
        (IMAGE + tensor(2, (1,), ints=[7]), {}, [b"JPEG", [7]]),
        (IMAGE + tensor(2, (1,), ints=[-7]), {"label_type": 0}, [b"JPEG", [-7]]),
        (IMAGE + tensor(2, (2,), ints=[1, 3]), {"label_type": 1, "num_labels": 5}, [b"JPEG", [0, 1, 0, 1, 0]]),
        (IMAGE + tensor(2, (3,), ints=[4, 5, 6]), {"label_type": 2, "num_labels": 5}, [b"JPEG", [4, 5, 6]]),
        (
            IMAGE + tensor(2, (2,), ints=[1, 3]) + tensor(1, (2,), floats=[0.5, 0.25]),
            {"label_type": 3, "num_labels": 5},
            [b"JPEG", [0, 0.5, 0, 0.25, 0]],
        ),
        (IMAGE, {"label_type": 4}, [b"JPEG"]),
        (
            IMAGE
            + tensor(2, (1,), ints=[7])
            + tensor(1, (2, 2), floats=[1, 2, 3, 4])
            + tensor(2, (3,), ints=[1, 2, 3]),
            {"additional_inputs": 2},
            [b"JPEG", [7], [1.0, 2.0, 3.0, 4.0], [1, 2, 3]],
        ),
        (
            IMAGE + tensor(2, (1,), ints=[7]) + tensor(2, (4,), ints=[1, 2, 3, 4]),
            {"bbox": True},
            [b"JPEG", [7], [1, 2, 3, 4]],
        ),
        (tensor(2, (1,), ints=[7]), {"image_available": False}, [[7]]),
        (
            tensor(3, (2, 2, 3), data=bytes(range(12))) + tensor(2, (1,), ints=[7]),
            {"encoded": False},
            [np.arange(12).reshape(2, 2, 3).tolist(), [7]],
        ),
    ],
)
def test_caffe2(tmp_path: Path, record: bytes, arguments: dict[str, Any], expected: list[Any]) -> None:
    reader = Caffe2(path=database(tmp_path / "db", [record, record]), **arguments)
    batches, rejects = fetch(reader, open_reader(reader), [1, 0])
    assert not rejects
    for batch, value, spec in zip(batches, expected, reader.infer(), strict=True):
        for sample in batch:
            assert (sample.tobytes() if isinstance(value, bytes) else sample.tolist()) == value
        assert spec.ndim == batch.ndim


@pytest.mark.parametrize(
    ("record", "arguments", "code"),
    [
        (b"\xff\xff", {}, "corrupt_record"),
        (IMAGE, {}, "missing_feature"),
        (IMAGE + tensor(1, (1,), floats=[7.5]), {}, "unsupported"),
        (IMAGE + tensor(2, (2,), ints=[7, 8]), {}, "bad_shape"),
        (IMAGE + tensor(2, (2,), ints=[1, 9]), {"label_type": 1, "num_labels": 5}, "bad_argument"),
        (IMAGE + tensor(2, (2,), ints=[1, 2]) + tensor(1, (1,), floats=[1]), {"label_type": 3}, "bad_shape"),
        (tensor(3, (2, 2), data=b"1234") + tensor(2, (1,), ints=[7]), {}, "unsupported"),
        (tensor(3, (2, 3, 3), data=b"1234") + tensor(2, (1,), ints=[7]), {"encoded": False}, "bad_shape"),
        (tensor(2, (1,), ints=[7]) + tensor(2, (1,), ints=[7]), {}, "unsupported"),
    ],
)
def test_caffe2_refuses(tmp_path: Path, record: bytes, arguments: dict[str, Any], code: str) -> None:
    good = IMAGE + tensor(2, (1,), ints=[0]) + tensor(1, (1,), floats=[1])
    if arguments.get("encoded") is False:
        good = tensor(3, (1, 1, 1), data=b"1") + tensor(2, (1,), ints=[0])
    reader = Caffe2(path=database(tmp_path / "db", [good, record, good]), **arguments)
    _, rejects = fetch(reader, open_reader(reader), range(3))
    assert [(r.slot, r.code) for r in rejects] == [(1, code)]


def test_wrong_arguments() -> None:
    wrong: list[Any] = [
        LMDB(path="x", schema="example"),
        LMDB(path="x", features={"a": "int64"}),
        LMDB(path="x", encoded=False),
        LMDB(path=""),
        Caffe(path="x", image_available=False, label_available=False),
        Caffe2(path="x", image_available=False, label_type=4),
    ]
    for reader in wrong:
        with pytest.raises(SpecError):
            reader.check()
