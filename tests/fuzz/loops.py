"""The compiled loops behind readers and decoders by themselves, readers' a few rows at a time: `python -m tests.fuzz
--compiled`.

Arrays end where the file ends, so that with Numba's bounds checks a read outside is an IndexError. Each loop is run to
the end of the bytes; it must come there, and give nothing that points outside.
"""

from __future__ import annotations

import io
import struct
import tarfile
from typing import Any

import numpy as np

from dali_run.readers import lmdb_cpu, recordio_cpu, tar_cpu, tfrecord_cpu
from dali_run.readers.records import datum_cpu, example_cpu, msgpack_cpu

from . import pictures
from .targets import (
    Target,
    database,
    datum,
    example,
    field,
    framed,
    message_pack,
    recordio,
    sealed,
    tensors,
)

I64 = np.int64
Bytes = np.ndarray


def array(data: bytes) -> Bytes:
    """Of its own size: a read after it is a read outside."""
    return np.frombuffer(bytearray(data), np.uint8)


def extent(data: Bytes) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(1, I64), np.array([len(data)], I64)


def run_features(cpu: Any, data: Bytes) -> None:
    names = [b"data", b"label", b"box"]
    text = np.frombuffer(bytearray(b"".join(names) + b"\0"), np.uint8)
    starts = np.cumsum([0, *map(len, names)]).astype(I64)
    found, status = np.empty((1, 3, 4), I64), np.zeros(1, np.int32)
    offsets, sizes = extent(data)
    cpu.find_features(data, offsets, sizes, np.ones(1, np.bool_), text, starts, found, status)
    for f in range(3):
        column = np.ascontiguousarray(found[:, f])
        assert 0 <= column[0, 0] <= column[0, 1] <= len(data)
        count = int(column[0, 2])
        assert 0 <= count <= len(data)
        cpu.read_floats(data, column, np.zeros(1, I64), np.empty(count, np.float32))
        cpu.read_integers(data, column, np.zeros(1, I64), np.empty(count, I64))


def run_datum(data: Bytes) -> None:
    found, status = np.empty((1, datum_cpu.DATUM_COLUMNS), I64), np.zeros(1, np.int32)
    datum_cpu.read_datums(data, *extent(data), found, status)
    if status[0] == 0:
        assert 0 <= found[0, datum_cpu.DATA] <= found[0, datum_cpu.DATA_STOP] <= len(data)


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


def run_tfrecord(data: Bytes) -> None:
    for check, most in ((True, len(data)), (False, len(data)), (True, 40)):
        at, total, search = 0, 0, most
        while at < len(data):
            offsets, sizes, kinds = np.empty(3, I64), np.empty(3, I64), np.empty(3, np.int32)
            n, after, search = tfrecord_cpu.walk(data, at, len(data), search, check, offsets, sizes, kinds)
            assert after > at
            assert 0 <= search <= most
            at, total = after, total + n
            offsets, sizes, kinds = offsets[:n], sizes[:n], kinds[:n]
            assert (offsets >= 0).all()
            assert (sizes >= 0).all()
            assert (offsets + sizes <= len(data)).all()
            tfrecord_cpu.check_records(data, offsets, sizes, kinds, kinds == tfrecord_cpu.GOOD)
        assert total <= len(data)


def run_recordio(data: Bytes) -> None:
    at, search = 0, len(data) // 4 + 1
    while at < len(data):
        rows = np.empty((3, recordio_cpu.COLUMNS), I64)
        n, after, left = recordio_cpu.walk(data, at, len(data), search, rows)
        assert after > at
        assert left <= search
        search = left
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
        link = members[:, tar_cpu.KIND] >= tar_cpu.HARD_LINK  # whose target is among the names
        ends = members[:, tar_cpu.DATA] + members[:, tar_cpu.SIZE]
        assert (ends <= np.where(link, state[1], len(data))).all()
        assert (members[:, tar_cpu.NAME] + members[:, tar_cpu.NAME_SIZE] <= state[1]).all()
        firsts, parts = np.empty(n, I64), np.empty((n, 2), I64)
        starts, outputs = np.array([0, 3, 6], I64), np.array([0, 1], I64)
        samples = tar_cpu.group(members, names, _EXT, starts, outputs, bool(n % 2), firsts, parts)
        assert 0 <= samples <= n
        hashes = np.empty(n, np.uint64)
        columns = [np.ascontiguousarray(members[:, k]) for k in (tar_cpu.NAME, tar_cpu.NAME_SIZE)]
        tar_cpu.hash_keys(names, *columns, hashes)
    assert total <= len(data)


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


# -- valid inputs -----------------------------------------------------------------------------------------------------


def archives() -> bytes:
    """Long names and sizes, in both ways."""
    out = io.BytesIO()
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
            for name, size in (("a.jpg", 5), ("é" * 60 + ".cls", 600), ("p" * 180 + "/b.jpg", 0), ("__m", 3)):
                info = tarfile.TarInfo(name)
                info.size = size
                archive.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


def parts() -> bytes:
    """A record of one part, one of three, and one that is cut off."""
    header = struct.pack("<IfQQ", 2, 0, 1, 0) + struct.pack("<2f", 1, 2)
    return recordio([(0, header + b"abc"), (1, header), (2, b"12345678"), (3, b"xyz"), (0, header[:24])])


def numbers() -> bytes:
    """TensorProtos of every kind."""
    weights = b"\x08\x02\x10\x01" + field(3, struct.pack("<2f", 1, 2))
    pixels = b"\x08\x02\x08\x01\x08\x03\x10\x03" + field(5, b"abcdef")
    return tensors() + field(1, weights) + field(1, pixels)


def pages() -> bytes:
    """Several levels of pages, and values with pages of their own."""
    return database([b"v" * ((i * 37) % 900 + (5000 if i % 20 == 0 else 0)) for i in range(120)])


LOOPS: dict[str, Target] = {
    "example": Target(lambda d: run_features(example_cpu, array(d)), lambda: [example()]),
    "msgpack": Target(lambda d: run_features(msgpack_cpu, array(d)), lambda: [message_pack()]),
    "datum": Target(lambda d: run_datum(array(d)), lambda: [datum()]),
    "tensors": Target(lambda d: run_tensors(array(d)), lambda: [numbers()]),
    "tfrecord": Target(
        lambda d: run_tfrecord(array(d)), lambda: [framed([bytes([i]) * (10 * i) for i in range(5)]), framed([b""])]
    ),
    "recordio": Target(lambda d: run_recordio(array(d)), lambda: [parts()]),
    "tar": Target(lambda d: run_tar(array(d)), lambda: [archives()]),
    "tar_sealed": Target(lambda d: run_tar(array(sealed(d))), lambda: [archives()]),
    "lmdb": Target(lambda d: run_lmdb(array(d)), lambda: [pages()]),
    **{name: Target(pictures.run, seeds, damage=damage) for name, (seeds, damage) in pictures.KINDS.items()},
}
"""By name."""
