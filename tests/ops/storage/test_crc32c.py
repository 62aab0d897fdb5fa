"""CRC-32C against published vectors and an independent bit-by-bit definition."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from dali_run.ops.storage import crc32c_cpu


def bitwise(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data: bytes, crc: int) -> None:
    buffer = np.frombuffer(data + b"x", np.uint8)
    assert crc32c_cpu.crc32c(buffer, 0, len(data)) == crc


def test_both_implementations_at_all_alignments() -> None:
    data = np.random.default_rng(0).integers(0, 256, 6 * crc32c_cpu.LONG + 9000, np.uint8)
    tables = numba.njit(crc32c_cpu._update_tables)
    for start in (0, 1, 2, 7, 8):
        for size in (0, 1, 7, 8, 9, 63, 767, 768, 3071, 3072, 12287, 6 * crc32c_cpu.LONG + 8888):
            expected = bitwise(data[start : start + size].tobytes())
            assert crc32c_cpu.crc32c(data, start, start + size) == expected
            assert ~np.uint32(tables(np.uint32(0xFFFFFFFF), data, start, start + size)) & 0xFFFFFFFF == expected


def test_masked_and_many() -> None:
    data = np.frombuffer(b"abcdefghij" * 50, np.uint8)
    offsets, sizes = np.array([0, 3, 490], np.int64), np.array([10, 0, 10], np.int64)
    plain = [bitwise(data[o : o + s].tobytes()) for o, s in zip(offsets, sizes, strict=True)]
    assert crc32c_cpu.crc32c_each(data, offsets, sizes).tolist() == plain
    # the length 24 of a record, as TensorFlow writes it
    length = np.frombuffer((24).to_bytes(8, "little"), np.uint8)
    assert int(crc32c_cpu.masked_crc32c(length, 0, 8)) == masked_of(24)


def masked_of(length: int) -> int:
    crc = bitwise(length.to_bytes(8, "little"))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("variables", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "x86-64"}])
def test_processors_without_the_instruction(variables: dict[str, str], tmp_path: Path) -> None:
    """One cache for many machines is compiled for a generic processor; LLVM would end the process."""
    program = (
        "import numpy as np; from dali_run.ops.storage.crc32c_cpu import crc32c, HARDWARE; "
        "assert not HARDWARE; data = np.frombuffer(b'123456789' * 300, np.uint8).copy(); print(crc32c(data, 0, 2700))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True,
        env={**os.environ, **variables, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip() == str(bitwise(b"123456789" * 300)), done.stderr[-500:]
