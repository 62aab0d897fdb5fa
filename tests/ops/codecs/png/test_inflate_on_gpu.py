"""zlib streams that warps of a GPU inflate: the bytes and the verdicts of zlib."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dali_run.ops.gpu.lane import Lane
from tests.kit.emulated_lane import GuardedLane
from tests.kit.ops.inflating import inflated


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def lane(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "emulated":
        yield GuardedLane()
        return
    with Lane() as real:
        yield real
        real.close()


def samples() -> dict[str, bytes]:
    rng = np.random.default_rng(5)
    fibonacci = [1, 1]
    while len(fibonacci) < 22:
        fibonacci.append(sum(fibonacci[-2:]))
    skewed = np.repeat(np.arange(22, dtype=np.uint8), fibonacci)
    photo = np.cumsum(rng.normal(0, 4, (90, 400)), axis=1).astype(np.int64)
    far = rng.integers(0, 256, 32768, dtype=np.uint8).tobytes()
    return {
        "one": b"a",
        "text": b"the same again, and the same again; " * 300,
        "noise": rng.integers(0, 256, 40000, dtype=np.uint8).tobytes(),  # stored
        "hardly any step": rng.integers(0, 250, 30000, dtype=np.uint8).tobytes(),  # codes of 8 bits, nearly all
        "rows": (np.diff(photo, axis=1, prepend=0) & 255).astype(np.uint8).tobytes(),
        "codes of 15 bits": rng.permutation(skewed).tobytes(),
        "zeros": bytes(150_000),
        "steps": b"".join(bytes([k]) * k for k in range(256)) * 2,
        "far": far + far[:5000] + far[-3:] * 90,
        "periods": b"".join(bytes(range(n)) * (700 // n) for n in range(1, 40)),
        "few": rng.choice(np.array([0, 0, 0, 1, 255], np.uint8), 30000).tobytes(),
    }


WAYS = [
    (level, strategy, memory)
    for level, strategy, memory in [
        (0, zlib.Z_DEFAULT_STRATEGY, 8), (1, zlib.Z_DEFAULT_STRATEGY, 8), (6, zlib.Z_DEFAULT_STRATEGY, 8),
        (9, zlib.Z_DEFAULT_STRATEGY, 9), (6, zlib.Z_FILTERED, 8), (6, zlib.Z_HUFFMAN_ONLY, 8), (6, zlib.Z_RLE, 8),
        (6, zlib.Z_FIXED, 8), (6, zlib.Z_DEFAULT_STRATEGY, 5),
    ]
]  # fmt: skip


def test_all_ways_of_zlib(lane: Any) -> None:
    streams, wanted = [], []
    for data in samples().values():
        for level, strategy, memory in WAYS:
            machine = zlib.compressobj(level, zlib.DEFLATED, 15, memory, strategy)
            streams.append(machine.compress(data) + machine.flush())
            wanted.append(data)
    found = inflated(lane, streams, [len(w) for w in wanted])
    for k, (got, data) in enumerate(zip(found, wanted, strict=True)):
        assert got == data, (list(samples())[k // len(WAYS)], WAYS[k % len(WAYS)])


def test_blocks_of_all_kinds_in_one_stream(lane: Any) -> None:
    """Empty ones, stored ones, ends at every bit; a window of 256 bytes."""
    data, streams, wanted = samples()["rows"], [], []
    for flush in (zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH):
        for window in (9, 15):
            machine, whole = zlib.compressobj(6, zlib.DEFLATED, window), b""
            for k in range(0, len(data), 6007):
                whole += machine.compress(data[k : k + 6007]) + machine.flush(flush)
            streams.append(whole + machine.flush())
            wanted.append(data)
    streams += [zlib.compress(b""), zlib.compress(b"", 0)]
    wanted += [b"", b""]
    assert inflated(lane, streams, [len(w) for w in wanted]) == wanted


class Bits:
    """A stream by hand."""

    def __init__(self) -> None:
        self._value, self._count = 0, 0

    def put(self, value: int, count: int) -> Bits:
        self._value |= value << self._count
        self._count += count
        return self

    def code(self, value: int, count: int) -> Bits:
        """The first bit is the highest."""
        return self.put(int(f"{value:0{count}b}"[::-1], 2), count)

    def lengths(self, literals: Sequence[int], distances: Sequence[int]) -> Bits:
        """The header of a last, dynamic block. Each length is written as a code of four bits: the length itself."""
        order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
        self.put(1, 1).put(2, 2).put(len(literals) - 257, 5).put(len(distances) - 1, 5).put(15, 4)
        for symbol in order:
            self.put(0 if symbol > 15 else 4, 3)
        for length in (*literals, *distances):
            self.code(length, 4)
        return self

    def stream(self, holds: bytes) -> bytes:
        body = self._value.to_bytes(-(-self._count // 8), "little")
        return b"\x78\x9c" + body + zlib.adler32(holds).to_bytes(4, "big")


def literals(**lengths: int) -> list[int]:
    """Lengths of codes, by letters, ``end``, and ``three``, which is the match of three bytes."""
    found = [0] * 258
    for name, length in lengths.items():
        found[{"end": 256, "three": 257}.get(name, ord(name[0]))] = length
    return found


def fixed() -> Bits:
    return Bits().put(1, 1).put(1, 2)


def by_hand() -> dict[str, tuple[bytes, int, bool]]:
    """Streams, the bytes that they should hold, and whether a decoder takes them."""
    abc = literals(a=2, b=2, end=2, three=2)  # codes 0 ... 3, in this order
    one, short, long = [1], literals(a=2, b=2, end=2), literals(a=1, b=1, end=1)

    def stored(size: int, other: int, data: bytes) -> bytes:
        bits = Bits().put(1, 1).put(0, 7).put(size, 16).put(other, 16)
        return bits.put(int.from_bytes(data, "little"), 8 * len(data)).stream(data)

    def match(distances: Sequence[int], code: int) -> bytes:
        return Bits().lengths(abc, distances).code(0, 2).code(3, 2).code(code, 1).code(2, 2).stream(b"aaaa")

    return {
        "one distance": (match(one, 0), 4, True),
        "the other distance": (match(one, 1), 4, False),
        "no distance": (Bits().lengths(abc, [0]).code(0, 2).code(1, 2).code(2, 2).stream(b"ab"), 2, True),
        "a match all the same": (match([0], 0), 4, False),
        "before the beginning": (match([0, 1], 0), 4, False),
        "codes left over": (Bits().lengths(short, one).code(0, 2).code(2, 2).stream(b"a"), 1, False),
        "too many codes": (Bits().lengths(long, one).code(0, 1).code(1, 1).stream(b"a"), 1, False),
        "no end": (Bits().lengths(literals(a=1, b=1), one).code(0, 1).stream(b"a"), 1, False),
        "length 286": (fixed().code(0x30 + 97, 8).code(0xC6, 8).code(0, 5).code(0, 7).stream(b"aaaa"), 4, False),
        "distance 30": (fixed().code(0x30 + 97, 8).code(1, 7).code(30, 5).code(0, 7).stream(b"aaaa"), 4, False),
        "fixed": (fixed().code(0x30 + 97, 8).code(1, 7).code(0, 5).code(0, 7).stream(b"aaaa"), 4, True),
        "kind 3": (Bits().put(1, 1).put(3, 2).put(0, 40).stream(b""), 0, False),
        "stored": (stored(3, 0xFFFC, b"abc"), 3, True),
        "stored, another size": (stored(3, 0xFFFD, b"abc"), 3, False),
        "stored, more than there is": (stored(9, 0xFFF6, b"abc"), 9, False),
    }


@pytest.mark.parametrize("name", by_hand())
def test_streams_by_hand(name: str, lane: Any) -> None:
    stream, room, taken = by_hand()[name]
    try:
        wanted: bytes | None = zlib.decompress(stream)
    except zlib.error:
        wanted = None
    assert (wanted is not None) is taken
    assert inflated(lane, [stream], [room]) == [wanted]


def test_what_is_around_a_stream_is_looked_at(lane: Any) -> None:
    data = samples()["text"]
    good = zlib.compress(data)
    n = len(data)
    cases = [
        (good, n, True), (good, n - 1, False), (good, n + 1, False), (good + b"\0", n, False), (good[:-1], n, False),
        (good[:-4], n, False), (good[:2], n, False), (good[:1], n, False), (b"", n, False),
        (b"\x78\x9d" + good[2:], n, False),  # the header's check
        (b"\x79\x9b" + good[2:], n, False),  # another method
        (b"\x88\x1c" + good[2:], n, False),  # a window of 64 kB
        (b"\x78\xbb" + good[2:], n, False),  # a preset dictionary
        (good[:-1] + bytes([good[-1] ^ 1]), n, False),
    ]  # fmt: skip
    found = inflated(lane, [c[0] for c in cases], [c[1] for c in cases])
    assert [f is not None for f in found] == [c[2] for c in cases]


def mutated(rng: np.random.Generator, stream: bytes) -> bytes:
    data, kind = bytearray(stream), rng.integers(0, 4)
    at = int(rng.integers(2, len(data) - 4))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(0, 8))
    elif kind == 1:
        data[at] = int(rng.integers(0, 256))
    elif kind == 2:
        del data[at : at + int(rng.integers(1, 9))]
    else:
        data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_streams(seed: int, lane: Any) -> None:
    """Each is taken if zlib takes it, with the same bytes, between sound ones that keep theirs. Where the damage leaves
    a deflate stream, the sum and the size are made right, so that nothing but the codes decides."""
    rng = np.random.default_rng(seed)
    data = samples()
    bases = [
        zlib.compress(data["text"], 6), zlib.compress(data["rows"][:1500], 6), zlib.compress(data["few"][:3000], 9),
        zlib.compress(data["steps"][:4000], 1), zlib.compress(data["noise"][:300], 0),
    ]  # fmt: skip
    machine = zlib.compressobj(6, zlib.DEFLATED, 15, 8, zlib.Z_FIXED)
    bases.append(machine.compress(data["rows"][:800]) + machine.flush())
    streams, wanted, room = [], list[bytes | None](), []
    for k in range(500):
        stream = mutated(rng, bases[k % len(bases)])
        holds = None
        raw = zlib.decompressobj(-15)
        try:
            holds = raw.decompress(stream[2:])
            if raw.eof:
                stream = stream[: len(stream) - len(raw.unused_data)] + zlib.adler32(holds).to_bytes(4, "big")
                room.append(len(holds))
            else:
                holds = None
        except zlib.error:
            holds = None
        if holds is None:
            room.append(len(zlib.decompress(bases[k % len(bases)])))
        streams.append(stream)
        wanted.append(holds)
        if k % 10 == 0:
            streams.append(bases[0])
            wanted.append(data["text"])
            room.append(len(data["text"]))
    assert inflated(lane, streams, room) == wanted
    assert sum(w is not None for w in wanted) > 150
    assert sum(w is None for w in wanted) > 100


def test_streams_of_countless_blocks_are_refused(lane: Any) -> None:
    """Each block costs as much as building its tables, whatever it holds."""
    machine, whole = zlib.compressobj(6), b""
    for _ in range(9000):
        whole += machine.compress(b"a") + machine.flush(zlib.Z_FULL_FLUSH)
    assert inflated(lane, [whole + machine.flush()], [9000]) == [None]
