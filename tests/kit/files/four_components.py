"""JPEGs with four components in every sampling, from random coefficients: no available encoder writes them."""

from __future__ import annotations

import numpy as np

from dali_run.ops.codecs.jpeg import tables

Factors = tuple[tuple[int, int], ...]


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


class _Bits:
    def __init__(self) -> None:
        self.text: list[str] = []

    def code(self, code: int) -> None:
        self.text.append(f"{code & 0xFFFF:0{code >> 16}b}")

    def value(self, value: int, size: int) -> None:
        if size:
            self.text.append(f"{value if value > 0 else value + (1 << size) - 1:0{size}b}")

    def taken(self) -> bytes:
        """Return the bytes written so far, with byte stuffing, padded with ones."""
        bits = "".join(self.text)
        bits += "1" * (-len(bits) % 8)
        self.text.clear()
        data = int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
        return data.replace(b"\xff", b"\xff\0")


def of_four(
    width: int, height: int, factors: Factors = ((1, 1),) * 4, transform: int | None = 0, restart: int = 0,
    seed: int = 0, table_of: tuple[int, ...] = (0, 1, 1, 0),
) -> bytes:  # fmt: skip
    """Return a baseline JPEG of four components with these sampling ``factors`` (h, v). ``transform`` is that of the
    Adobe marker, 0 for CMYK, 2 for YCCK; None for no marker. ``table_of``: each component's tables, Huffman and
    quantisation."""
    rng, codes = np.random.default_rng(seed), tables.huffman_codes()
    h_max, v_max = max(h for h, _ in factors), max(v for _, v in factors)
    mcus = -(-width // (8 * h_max)) * -(-height // (8 * v_max))
    head = b"\xff\xd8"
    if transform is not None:
        head += _segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes((transform,)))
    quantisation = tables.quantisation(75).astype(np.uint8)
    head += b"".join(_segment(0xDB, bytes((k,)) + quantisation[k].tobytes()) for k in range(2))
    rows = b"".join(bytes((c + 1, h << 4 | v, table_of[c])) for c, (h, v) in enumerate(factors))
    head += _segment(0xC0, bytes((8, height >> 8, height & 255, width >> 8, width & 255, 4)) + rows)
    head += tables.standard_huffman(3)
    if restart:
        head += _segment(0xDD, restart.to_bytes(2, "big"))
    which = b"".join(bytes((c + 1, table_of[c] * 0x11)) for c in range(4))
    bits, before, data = _Bits(), [0] * 4, _segment(0xDA, b"\x04" + which + b"\0\x3f\0")
    for mcu in range(mcus):
        if restart and mcu and mcu % restart == 0:
            data += bits.taken() + bytes((0xFF, 0xD0 + (mcu // restart - 1) % 8))
            before = [0] * 4
        for c, (h, v) in enumerate(factors):
            dc, ac = codes[2 * table_of[c]].tolist(), codes[2 * table_of[c] + 1].tolist()
            for _ in range(h * v):
                value = int(np.clip(before[c] + rng.integers(-25, 26), -60, 60))
                size = abs(value - before[c]).bit_length()
                bits.code(dc[size])
                bits.value(value - before[c], size)
                before[c] = value
                for _ in range(rng.integers(0, 6)):
                    run, other = int(rng.integers(0, 4)), int(rng.choice([-5, -3, -2, -1, 1, 2, 3, 7]))
                    bits.code(ac[run << 4 | abs(other).bit_length()])
                    bits.value(other, abs(other).bit_length())
                bits.code(ac[0])
    return head + data + bits.taken() + b"\xff\xd9"
