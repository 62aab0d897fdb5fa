"""Encode progressive JPEGs with any script of scans, from coefficients (T.81, G.1.2): no available encoder does."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

Scan = tuple[tuple[int, ...], int, int, int, int]
"""A scan of a progressive JPEG: components, first and last zig-zag index, and the number of low bits that are unknown
before (0: all) and after it."""

DEFAULT: tuple[Scan, ...] = (
    ((0, 1, 2), 0, 0, 0, 1), ((0,), 1, 5, 0, 2), ((2,), 1, 63, 0, 1), ((1,), 1, 63, 0, 1), ((0,), 6, 63, 0, 2),
    ((0,), 1, 63, 2, 1), ((0, 1, 2), 0, 0, 1, 0), ((2,), 1, 63, 1, 0), ((1,), 1, 63, 1, 0), ((0,), 1, 63, 1, 0),
)  # fmt: skip
"""Script of scans that libjpeg uses by default."""


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


class Codes:
    """A Huffman table for ``symbols``; ``lengths`` gives the number of codes per length."""

    def __init__(self, symbols: Sequence[int], lengths: Mapping[int, int]) -> None:
        self.table = bytes(lengths.get(n, 0) for n in range(1, 17)) + bytes(symbols)
        self.of: dict[int, tuple[int, int]] = {}
        code, left = 0, iter(symbols)
        for length in range(1, 17):
            for _ in range(lengths.get(length, 0)):
                self.of[next(left)] = (code, length)
                code += 1
            code <<= 1


COMMON = [0x00, 0x01, 0x11, 0x02, 0x21, 0x10, 0x20, 0xF0, 0x31, 0x12, 0x03]
AC = Codes(
    COMMON + [s for s in range(256) if s not in COMMON],
    {2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 6, 8: 8, 9: 16, 10: 24, 12: 64, 16: 128},
)
DC = Codes(range(16), {2: 1, 3: 2, 4: 3, 5: 4, 9: 4, 12: 2})


class Bits:
    """Writer of entropy-coded bytes."""

    def __init__(self) -> None:
        self.bits: list[str] = []

    def put(self, value: int, size: int) -> None:
        if size:
            self.bits.append(format(value, f"0{size}b"))

    def code(self, codes: Codes, symbol: int) -> None:
        self.put(*codes.of[symbol])

    def signed(self, value: int, size: int) -> None:
        self.put(value if value >= 0 else value + (1 << size) - 1, size)

    def bytes(self) -> bytes:
        whole = "".join(self.bits)
        whole += "1" * (-len(whole) % 8)
        return int(whole or "0", 2).to_bytes(len(whole) // 8, "big").replace(b"\xff", b"\xff\0")


@dataclass
class Picture:
    """Quantised coefficients of a JPEG image: per component [rows, columns, 64] for all blocks of complete MCUs."""

    width: int
    height: int
    sampling: tuple[tuple[int, int], ...]
    planes: list[NDArray[np.int64]]
    quant: int = 3

    @classmethod
    def random(
        cls, width: int, height: int, sampling: Sequence[tuple[int, int]], seed: int = 0, scale: float = 30
    ) -> Picture:
        rng = np.random.default_rng(seed)
        h_max, v_max = (max(s[i] for s in sampling) for i in range(2))
        planes = []
        for h, v in sampling:
            shape = -(-height // (8 * v_max)) * v, -(-width // (8 * h_max)) * h, 64
            values = rng.laplace(0, scale / (1 + np.arange(64)) ** 0.8, shape)
            busy = rng.random(shape[:2]) < 0.7
            values[..., 1:] *= busy[..., None]
            plane = np.trunc(values).astype(np.int64)
            plane[..., 0] = np.clip(np.cumsum(rng.integers(-20, 21, shape[:2]), 1), -300, 300)
            planes.append(plane)
        return cls(width, height, tuple(sampling), planes)

    def blocks(self, components: Sequence[int]) -> Iterator[list[tuple[int, NDArray[np.int64]]]]:
        """Yield MCUs: for each block the index of its component in the scan, and its coefficients."""
        h_max, v_max = (max(s[i] for s in self.sampling) for i in range(2))
        if len(components) == 1:
            (c,) = components
            h, v = self.sampling[c]
            for y in range(ceil(ceil(self.height * v / v_max) / 8)):
                for x in range(ceil(ceil(self.width * h / h_max) / 8)):
                    yield [(0, self.planes[c][y, x])]
            return
        for y in range(-(-self.height // (8 * v_max))):
            for x in range(-(-self.width // (8 * h_max))):
                yield [
                    (i, self.planes[c][y * v + j, x * h + k])
                    for i, c in enumerate(components)
                    for h, v in [self.sampling[c]]
                    for j in range(v)
                    for k in range(h)
                ]

    def encoded(self, script: Sequence[Scan] = DEFAULT, interval: int = 0, longest_run: int = 0x7FFF) -> bytes:
        """Encode the image as a JPEG file. ``longest_run``: maximum number of blocks that one end-of-band symbol
        ends."""
        n = len(self.sampling)
        file = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([self.quant] * 64))
        parts = b"".join(bytes([c + 1, h << 4 | v, 0]) for c, (h, v) in enumerate(self.sampling))
        file += segment(0xC2, struct.pack(">BHHB", 8, self.height, self.width, n) + parts)
        file += segment(0xC4, b"\0" + DC.table + b"\x10" + AC.table)
        if interval:
            file += segment(0xDD, struct.pack(">H", interval))
        for components, first, last, high, low in script:
            names = b"".join(bytes([c + 1, 0]) for c in components)
            file += segment(0xDA, bytes([len(components)]) + names + bytes([first, last, high << 4 | low]))
            mcus = list(self.blocks(components))
            step = interval or len(mcus)
            for nth, begin in enumerate(range(0, len(mcus), step)):
                if nth:
                    file += bytes([0xFF, 0xD0 + (nth - 1) % 8])
                file += scan_bytes(mcus[begin : begin + step], first, last, high, low, longest_run)
        return file + b"\xff\xd9"


def scan_bytes(
    mcus: Sequence[Sequence[tuple[int, NDArray[np.int64]]]], first: int, last: int, high: int, low: int, longest: int
) -> bytes:
    """Encode one restart interval of a scan, and return its bytes."""
    out = Bits()
    before = [0] * 4
    if first == 0:
        for mcu in mcus:
            for i, block in mcu:
                value = int(block[0]) >> low
                if high:
                    out.put(value & 1, 1)
                    continue
                size = abs(value - before[i]).bit_length()
                out.code(DC, size)
                out.signed(value - before[i], size)
                before[i] = value
        return out.bytes()
    ended, pending = 0, ""  # number of ended blocks, and their correction bits

    def flush() -> None:
        nonlocal ended, pending
        if ended:
            size = ended.bit_length() - 1
            out.code(AC, size << 4)
            out.put(ended - (1 << size), size)
        if pending:
            out.bits.append(pending)
        ended, pending = 0, ""

    for ((_, values),) in mcus:
        magnitudes = [abs(int(v)) >> low for v in values]
        fresh = [k for k in range(first, last + 1) if magnitudes[k] and not (high and magnitudes[k] > 1)]
        zeros, corrections = 0, ""
        for k in range(first, last + 1):
            if magnitudes[k] == 0:
                zeros += 1
                continue
            while zeros > 15 and fresh and k <= fresh[-1]:
                flush()
                out.code(AC, 0xF0)
                out.bits.append(corrections)
                zeros, corrections = zeros - 16, ""
            if high and magnitudes[k] > 1:
                corrections += str(magnitudes[k] & 1)
                continue
            flush()
            size = magnitudes[k].bit_length()
            out.code(AC, zeros << 4 | size)
            out.signed(magnitudes[k] if values[k] > 0 else -magnitudes[k], size)
            out.bits.append(corrections)
            zeros, corrections = 0, ""
        if zeros or corrections:
            ended, pending = ended + 1, pending + corrections
            if ended == longest:
                flush()
    flush()
    return out.bytes()
