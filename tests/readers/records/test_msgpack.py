"""MessagePack values of LMDB records, packed here after the specification (every encoding of every type)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from dali_run.readers.lmdb import LMDB
from tests.kit.readers import fetch, open_reader


def sized(tags: tuple[int, int, int], n: int) -> bytes:
    return struct.pack(">BB", tags[0], n) if n < 256 else struct.pack(">BH", tags[1], n)


def pack(value: Any, wide: bool = False) -> bytes:
    """``wide`` takes the longest encoding instead of the shortest."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if wide:
            return struct.pack(">Bq", 0xD3, value) if value < 2**63 else struct.pack(">BQ", 0xCF, value)
        if 0 <= value < 128 or -32 <= value < 0:
            return struct.pack(">b", value)
        kinds = zip((0xCC, 0xCD, 0xCE, 0xCF), "BHIQ", strict=True) if value > 0 else zip(
            (0xD0, 0xD1, 0xD2, 0xD3), "bhiq", strict=True
        )  # fmt: skip
        for tag, code in kinds:
            try:
                return bytes([tag]) + struct.pack(">" + code, value)
            except struct.error:
                continue
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value) if wide else struct.pack(">Bf", 0xCA, value)
    if isinstance(value, str):
        data = value.encode()
        if wide:
            return struct.pack(">BI", 0xDB, len(data)) + data
        return (bytes([0xA0 | len(data)]) if len(data) < 32 else sized((0xD9, 0xDA, 0xDB), len(data))) + data
    if isinstance(value, bytes):
        return (struct.pack(">BI", 0xC6, len(value)) if wide else sized((0xC4, 0xC5, 0xC6), len(value))) + value
    if isinstance(value, list):
        start = bytes([0x90 | len(value)]) if len(value) < 16 and not wide else struct.pack(">BI", 0xDD, len(value))
        if not wide and len(value) >= 16:
            start = struct.pack(">BH", 0xDC, len(value))
        return start + b"".join(pack(v, wide) for v in value)
    assert isinstance(value, dict)
    start = bytes([0x80 | len(value)]) if len(value) < 16 and not wide else struct.pack(">BI", 0xDF, len(value))
    return start + b"".join(pack(k, wide) + pack(v, wide) for k, v in value.items())


def database(path: Path, values: list[bytes]) -> str:
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for i, value in enumerate(values):
            txn.put(b"%04d" % i, value)
    return str(path)


VAR = {"dtype": "int64", "var_len": True}
NUMBERS = [
    0,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**32,
    2**63 - 1,
    -1,
    -32,
    -33,
    -128,
    -129,
    -32769,
    -(2**31) - 1,
    -(2**63),
]


@pytest.mark.parametrize("wide", [False, True])
def test_maps(tmp_path: Path, wide: bool) -> None:
    record = {
        "skipped": {"deep": [[1, [2, {"x": None}]], "y"], "z": 1.5},
        "image": b"\xff\xd8" + bytes(300),
        "label": 7,
        "name": "cat",
        "numbers": NUMBERS,
        "box": [0.5, 1, 2.25, -3],
        "flag": True,
        "array": {"nd": True, "type": "|u1", "kind": "", "shape": [4], "data": b"\x01\x02\x03\x04"},
        "nothing": None,
    }
    ext = b"\xd6\x05abcd" + b"\xc7\x03\x01abc"  # extension types are skipped
    with_ext = b"\xdf" + struct.pack(">I", len(record) + 2)
    with_ext += pack("e1") + ext[:6] + pack("e2") + ext[6:]
    with_ext += b"".join(pack(k, wide) + pack(v, wide) for k, v in record.items())
    features = {
        "image": "string",
        "label": {"dtype": "int64", "shape": []},
        "name": "string",
        "numbers": VAR,
        "box": {"dtype": "float", "shape": [2, 2]},
        "flag": "int64",
        "array": "string",
        "nothing": {"dtype": "float", "shape": [], "default": 9.0},
    }
    reader = LMDB(path=database(tmp_path / "db", [pack(record, wide), with_ext]), schema="msgpack", features=features)
    batches, rejects = fetch(reader, open_reader(reader), [0, 1])
    assert not rejects
    for i in range(2):
        image, label, name, numbers, box, flag, array, nothing = (b.sample(i) for b in batches)
        assert image.tobytes() == record["image"]
        assert label.tolist() == 7
        assert name.tobytes() == b"cat"
        assert numbers.tolist() == NUMBERS
        assert box.tolist() == [[0.5, 1.0], [2.25, -3.0]]
        assert flag.tolist() == [1]
        assert array.tobytes() == b"\x01\x02\x03\x04"
        assert nothing.tolist() == 9.0


def test_arrays_by_number(tmp_path: Path) -> None:
    values = [pack([b"jpeg", 3]), pack([b"png", 4, "more"]), pack({0: b"by key", 1: -5})]
    features = {"0": "string", "1": "int64"}
    reader = LMDB(path=database(tmp_path / "db", values), schema="msgpack", features=features)
    (image, label), rejects = fetch(reader, open_reader(reader), range(3))
    assert not rejects
    assert [s.tobytes() for s in image] == [b"jpeg", b"png", b"by key"]
    assert label.dense().tolist() == [[3], [4], [-5]]


def test_what_is_refused(tmp_path: Path) -> None:
    good = pack({"a": b"x", "n": 1})
    cases: dict[bytes, str] = {
        b"": "corrupt_record",
        good[:-1]: "corrupt_record",
        pack(5): "corrupt_record",
        b"\xc1": "corrupt_record",
        b"\xdf\xff\xff\xff\xff" + good: "corrupt_record",
        b"\xdd\xff\xff\xff\xff" * 50: "corrupt_record",
        b"\x91" * 5000: "corrupt_record",
        pack({"n": 1}): "missing_feature",
        pack({"a": b"x", "n": "1"}): "missing_feature",
        pack({"a": b"x", "n": [1, [2]]}): "missing_feature",
        pack({"a": b"x", "n": [1, 2]}): "bad_shape",
        pack({"a": [b"x", b"y"], "n": 1}): "bad_shape",
    }
    reader = LMDB(
        path=database(tmp_path / "db", [good, *cases, good]), schema="msgpack", features={"a": "string", "n": "int64"}
    )
    _, rejects = fetch(reader, open_reader(reader), range(len(cases) + 2))
    assert {r.slot: r.code for r in rejects} == dict(enumerate(cases.values(), 1))


def test_every_damaged_byte(tmp_path: Path) -> None:
    record = pack({"a": b"xyz", "n": [1, 2, 300], "f": [0.5], "m": {"nd": True, "data": b"12"}})
    values = []
    for place in range(len(record)):
        for byte in (0, 0x7F, 0x81, 0x9F, 0xC1, 0xC4, 0xC9, 0xD3, 0xDB, 0xDD, 0xDF, 0xFF):
            values.append(record[:place] + bytes([byte]) + record[place + 1 :])
    values += [record[:k] for k in range(len(record))]
    features = {
        "a": {"dtype": "string", "default": ""},
        "n": VAR,
        "f": {"dtype": "float", "var_len": True},
        "m": {"dtype": "string", "var_len": True},
    }
    reader = LMDB(path=database(tmp_path / "db", values), schema="msgpack", features=features)
    batches, rejects = fetch(reader, open_reader(reader), range(len(values)))
    assert 0 < len(rejects) < len(values)
    assert all(np.all(b.sizes <= len(record)) for b in batches)
