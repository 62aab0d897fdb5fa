"""Throws damaged bytes at every parser of the readers, with Numba's bounds checks on.

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=/tmp/fuzz-cache python tests/readers/fuzz.py [SECONDS] [SEED]

Arrays end where the file ends, so that a read outside raises IndexError here. Each execution is one damaged container
(or message), opened and read to its end; it must end, and give nothing that points outside.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from dali_run.ops import crc32c_cpu
from dali_run.readers import datum_cpu, example_cpu, lmdb_cpu, msgpack_cpu, recordio_cpu, tar_cpu, tfrecord_cpu

I64 = np.int64
Bytes = np.ndarray


def extent(data: Bytes) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(1, I64), np.array([len(data)], I64)


def varint(n: int) -> bytes:
    out = b""
    while True:
        n, low = n >> 7, n & 127
        out += bytes([low | (128 if n else 0)])
        if not n:
            return out


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def example_seed() -> bytes:
    def entry(name: bytes, feature: bytes) -> bytes:
        return field(1, field(1, name) + field(2, feature))

    return field(
        1,
        entry(b"image", field(1, field(1, b"x" * 50)))
        + entry(b"label", field(3, field(1, b"\x01\xff\xff\x03\x07")))
        + entry(b"box", field(2, field(1, struct.pack("<4f", 1, 2, 3, 4)))),
    )


def msgpack_seed() -> bytes:
    return (
        b"\x85\xa5image\xc4\x04jpeg\xa5label\x95\xcc\xc8\x05\xd1\xff\x00\xff\xd3" + bytes(8)
        + b"\xa3box\x93\xca" + bytes(4) + b"\xcb" + bytes(8) + b"\x01"
        + b"\xa1m\x82\xa2nd\xc3\xa4data\xc5\x00\x02ab" + b"\xa1e\xd6\x05abcd"
    )  # fmt: skip


def run_example(data: Bytes) -> None:
    run_features(example_cpu, data)


def run_msgpack(data: Bytes) -> None:
    run_features(msgpack_cpu, data)


def run_features(cpu: Any, data: Bytes) -> None:
    names = [b"image", b"label", b"box"]
    text = np.frombuffer(bytearray(b"".join(names) + b"\0"), np.uint8)
    starts = np.cumsum([0, *map(len, names)]).astype(I64)
    found, status = np.empty((1, 3, 4), I64), np.zeros(1, np.int32)
    offsets, sizes = extent(data)
    cpu.find_features(data, offsets, sizes, text, starts, found, status)
    for f in range(3):
        column = np.ascontiguousarray(found[:, f])
        assert 0 <= column[0, 0] <= column[0, 1] <= len(data)
        count = int(column[0, 2])
        assert 0 <= count <= len(data)
        cpu.read_floats(data, column, np.zeros(1, I64), np.empty(count, np.float32))
        cpu.read_integers(data, column, np.zeros(1, I64), np.empty(count, I64))


def datum_seed() -> bytes:
    return field(1, 3) + field(2, 2) + field(3, 2) + field(4, bytes(12)) + field(5, 300) + field(7, 1)


def run_datum(data: Bytes) -> None:
    found, status = np.empty((1, datum_cpu.DATUM_COLUMNS), I64), np.zeros(1, np.int32)
    datum_cpu.read_datums(data, *extent(data), found, status)
    if status[0] == 0:
        assert 0 <= found[0, datum_cpu.DATA] <= found[0, datum_cpu.DATA_STOP] <= len(data)


def tensors_seed() -> bytes:
    image = field(1, 1) + field(2, 4) + field(6, b"jpeg")
    label = field(1, 2) + field(2, 2) + field(4, b"\x01\x80\x01")
    weights = field(1, 2) + field(2, 1) + field(3, struct.pack("<2f", 1, 2))
    pixels = field(1, 2) + field(1, 1) + field(1, 3) + field(2, 3) + field(5, b"abcdef")
    return b"".join(field(1, t) for t in (image, label, weights, pixels))


def run_tensors(data: Bytes) -> None:
    found, counts = np.empty((1, 4, datum_cpu.TENSOR_COLUMNS), I64), np.empty(1, I64)
    status = np.zeros(1, np.int32)
    datum_cpu.read_tensors(data, *extent(data), found, counts, status)
    if status[0]:
        return
    for t in range(4):
        column = np.ascontiguousarray(found[:, t])
        assert 0 <= column[0, datum_cpu.START] <= column[0, datum_cpu.STOP] <= len(data)
        count = int(column[0, datum_cpu.COUNT])
        assert 0 <= count <= len(data)
        datum_cpu.read_numbers(data, column, np.zeros(1, I64), np.empty(count, np.float64))


def tfrecord_seed() -> bytes:
    out = b""
    for i in range(5):
        payload = bytes([i]) * (10 * i)
        length = struct.pack("<Q", len(payload))

        def masked(part: bytes) -> bytes:
            return struct.pack("<I", int(crc32c_cpu.masked_crc32c(np.frombuffer(part + b"x", np.uint8), 0, len(part))))

        out += length + masked(length) + payload + masked(payload)
    return out


def run_tfrecord(data: Bytes) -> None:
    for check in (True, False):
        at, total = 0, 0
        while at < len(data):
            offsets, sizes, kinds = np.empty(3, I64), np.empty(3, I64), np.empty(3, np.int32)
            n, after = tfrecord_cpu.walk(data, at, len(data), check, offsets, sizes, kinds)
            assert after > at
            at, total = after, total + n
            offsets, sizes, kinds = offsets[:n], sizes[:n], kinds[:n]
            assert (offsets >= 0).all()
            assert (sizes >= 0).all()
            assert (offsets + sizes <= len(data)).all()
            tfrecord_cpu.check_records(data, offsets, sizes, kinds)
        assert total <= len(data)


def recordio_seed() -> bytes:
    def part(kind: int, payload: bytes) -> bytes:
        return struct.pack("<II", 0xCED7230A, kind << 29 | len(payload)) + payload + bytes(-len(payload) % 4)

    header = struct.pack("<IfQQ", 2, 0, 1, 0) + struct.pack("<2f", 1, 2)
    return part(0, header + b"abc") + part(1, header) + part(2, b"12345678") + part(3, b"xyz") + part(0, header[:24])


def run_recordio(data: Bytes) -> None:
    at = 0
    while at < len(data):
        rows = np.empty((3, recordio_cpu.COLUMNS), I64)
        n, after = recordio_cpu.walk(data, at, len(data), rows)
        assert after > at
        at, rows = after, rows[:n]
        assert (rows[:, :2] >= 0).all()
        assert (rows[:, 0] + rows[:, 1] <= len(data) + 4).all()
        kinds, sizes = rows[:, recordio_cpu.KIND].copy(), rows[:, recordio_cpu.SIZE].copy()
        room = np.where(kinds == 0, sizes, 0)
        to = np.cumsum(room) - room
        joined = np.empty(int(room.sum()), np.uint8)
        recordio_cpu.join(data, rows, to, joined)
        flags = np.empty(n, I64)
        recordio_cpu.read_headers(joined, to, sizes, flags, kinds)
        counts = np.where(kinds == 0, np.maximum(flags, 1), 0)
        recordio_cpu.read_labels(
            joined, to, flags, kinds, np.cumsum(counts) - counts, np.empty(counts.sum(), np.float32)
        )


def tar_seed() -> bytes:
    out = io.BytesIO()
    for fmt in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(fileobj=out, mode="w", format=fmt) as archive:
            for name, size in (("a.jpg", 5), ("é" * 60 + ".cls", 600), ("p" * 180 + "/b.jpg", 0), ("__m", 3)):
                info = tarfile.TarInfo(name)
                info.size = size
                archive.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


_EXT = np.frombuffer(bytearray(b"jpgcls\0"), np.uint8)


def run_tar(data: Bytes) -> None:
    at, total = 0, 0
    while at < len(data):
        members, names = np.empty((3, tar_cpu.COLUMNS), I64), np.empty(3 * tar_cpu.MAX_NAME, np.uint8)
        state = np.array([at, 0], I64)
        n = tar_cpu.walk(data, 0, len(data), members, names, state)
        assert state[0] > at
        at, total, members = int(state[0]), total + n, members[:n]
        assert (members >= 0).all()
        assert (members[:, tar_cpu.DATA] + members[:, tar_cpu.SIZE] <= len(data)).all()
        assert (members[:, tar_cpu.NAME] + members[:, tar_cpu.NAME_SIZE] <= state[1]).all()
        firsts, parts = np.empty(n, I64), np.empty((n, 2), I64)
        starts, outputs = np.array([0, 3, 6], I64), np.array([0, 1], I64)
        samples = tar_cpu.group(members, names, _EXT, starts, outputs, bool(n % 2), firsts, parts)
        assert 0 <= samples <= n
        hashes = np.empty(n, np.uint64)
        columns = [np.ascontiguousarray(members[:, k]) for k in (tar_cpu.NAME, tar_cpu.NAME_SIZE)]
        tar_cpu.hash_keys(names, *columns, hashes)
    assert total <= len(data)


def lmdb_seed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with lmdb.open(folder, map_size=1 << 22) as env, env.begin(write=True) as txn:
            for i in range(120):
                txn.put(b"%d" % i * (1 + i % 20), b"v" * ((i * 37) % 900 + (5000 if i % 20 == 0 else 0)))
        return Path(folder, "data.mdb").read_bytes()


def run_lmdb(data: Bytes) -> None:
    size = len(data)
    for root in range(size // 4096):
        if data[root * 4096 + 10 : root * 4096 + 11].tolist() == [1] or size < 8192:
            break
    else:
        root = 2
    visited, stack = np.zeros(size // 4096 + 1, np.uint8), np.zeros(2 * lmdb_cpu.MAX_DEPTH + 1, I64)
    total = 0
    while True:
        rows = np.empty((7, 5), I64)
        n = lmdb_cpu.walk(data, 0, size, 4096, root, visited, rows, stack)
        rows, total = rows[:n], total + n
        good = rows[rows[:, 4] == 0]
        assert (good[:, :4] >= 0).all()
        assert (good[:, 0] + good[:, 1] <= size).all()
        assert (good[:, 2] + good[:, 3] <= size).all()
        columns = [np.ascontiguousarray(good[:, k]) for k in (2, 3, 4)]
        zeros = np.zeros(len(good), I64)
        lmdb_cpu.check_overflow(data, zeros, zeros + 4096, *columns)
        if n < 7 and stack[0] == 0:
            break
        assert total < size


TARGETS: dict[str, tuple[Callable[[], bytes], Callable[[Bytes], None]]] = {
    "example": (example_seed, run_example),
    "msgpack": (msgpack_seed, run_msgpack),
    "datum": (datum_seed, run_datum),
    "tensors": (tensors_seed, run_tensors),
    "tfrecord": (tfrecord_seed, run_tfrecord),
    "recordio": (recordio_seed, run_recordio),
    "tar": (tar_seed, run_tar),
    "lmdb": (lmdb_seed, run_lmdb),
}
_ODD = np.array([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF], np.uint8)


def damaged(seed: bytes, rng: np.random.Generator, seal: bool) -> Bytes:
    """The seed with bytes changed, moved, doubled or cut off; tar headers get a right checksum half of the time."""
    data = np.frombuffer(bytearray(seed), np.uint8)
    for _ in range(int(rng.integers(1, 8))):
        place = int(rng.integers(0, len(data)))
        kind = int(rng.integers(0, 6))
        if kind < 3:
            data[place] = rng.choice(_ODD) if kind else rng.integers(0, 256)
        elif kind == 3:
            data[place] ^= np.uint8(1 << int(rng.integers(0, 8)))
        else:
            size = int(rng.integers(1, min(64, len(data) - place + 1)))
            source = int(rng.integers(0, len(data) - size + 1))
            data[place : place + size] = data[source : source + size].copy()
    if rng.random() < 0.3:
        data = data[: int(rng.integers(1, len(data) + 1))]
    if seal:
        for at in range(0, len(data) - 511, 512):
            if data[at + 257 : at + 262].tobytes() == b"ustar":
                data[at + 148 : at + 156] = 32
                text = b"%06o\0 " % int(data[at : at + 512].sum(dtype=np.int64))
                data[at + 148 : at + 156] = np.frombuffer(text[:8], np.uint8)
    return data.copy()  # of its own size: a read behind it is a read outside


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        sys.exit("set NUMBA_BOUNDSCHECK=1, and NUMBA_CACHE_DIR to a folder of its own")
    for name, (make, run) in TARGETS.items():
        good, rng = make(), np.random.default_rng(seed)
        run(np.frombuffer(bytearray(good), np.uint8))
        end, executions, slowest = time.monotonic() + seconds / len(TARGETS), 0, 0.0
        while time.monotonic() < end:
            data = damaged(good, rng, seal=name == "tar" and executions % 2 == 0)
            start = time.monotonic()
            try:
                run(data)
            except Exception:
                Path(f"fuzz-{name}.bin").write_bytes(data.tobytes())
                raise
            slowest = max(slowest, time.monotonic() - start)
            executions += 1
        print(f"{name:10} {executions:9} executions, slowest {slowest * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
