"""Progressive JPEGs of all kinds, valid and damaged, and their pixels from the CPU decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg import turbo
from dali_run.ops.types import DALIImageType
from tests.kit.files import jpegs
from tests.kit.files.progressive import Scan


def encode(width: int, height: int, seed: int = 0, gray: bool = False, **options: Any) -> bytes:
    """Encode a JPEG like `jpegs.encode`, but progressive."""
    return jpegs.encode(width, height, seed, gray, **({"progressive": True} | options))


def packed(files: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.array([len(f) for f in files], np.int64)
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum(sizes) - sizes, sizes


def on_cpu(file: bytes, space: DALIImageType = DALIImageType.RGB) -> NDArray[np.uint8]:
    """Decode the file with decoders.image on the CPU. Raises SampleError."""
    row = jpeg_header.read_headers(*packed([file]))[0]
    turbo.check_header(row)
    out = np.empty((row["height"], row["width"], 1 if space is DALIImageType.GRAY else 3), np.uint8)
    turbo.decode_into(memoryview(file), row, space, False, memoryview(out.reshape(-1)))
    return out


SIZES = [(1, 1), (2, 3), (8, 8), (9, 17), (16, 16), (17, 15), (33, 70), (130, 61), (257, 131)]


YCC420 = ((2, 2), (1, 1), (1, 1))


SAMPLINGS = [((1, 1),), ((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 1), (1, 1)), YCC420, ((1, 2), (1, 1), (1, 1)),
             ((4, 1), (1, 1), (1, 1)), ((4, 2), (1, 1), (1, 1)), ((2, 2), (2, 1), (1, 2))]  # fmt: skip


WHOLE = (((0, 1, 2), 0, 0, 0, 0), ((0,), 1, 63, 0, 0), ((1,), 1, 63, 0, 0), ((2,), 1, 63, 0, 0))


DEEP = (
    ((0,), 0, 0, 0, 3), ((2, 1), 0, 0, 0, 2), ((0,), 1, 1, 0, 4), ((0,), 2, 33, 0, 4), ((0,), 34, 63, 0, 3),
    ((0,), 1, 33, 4, 3), ((0,), 1, 31, 3, 2), ((0,), 32, 63, 3, 2), ((0,), 0, 0, 3, 2), ((0, 1, 2), 0, 0, 2, 1),
    ((0,), 1, 63, 2, 1), ((1,), 1, 63, 0, 2), ((2,), 1, 63, 0, 0), ((0,), 1, 63, 1, 0), ((1,), 1, 63, 2, 1),
    ((1,), 1, 63, 1, 0), ((2,), 0, 0, 1, 0), ((0, 1), 0, 0, 1, 0),
)  # fmt: skip
"""Script of scans with four bits of approximation, bands that share words in memory, and scans of some components in
unusual orders."""


SHORT = (*WHOLE[:1], ((0,), 1, 20, 0, 0), ((1,), 1, 9, 0, 0), ((2,), 1, 63, 0, 1), ((2,), 1, 63, 1, 0))
"""Script of scans that leaves out some coefficients, beyond those that libjpeg would estimate."""


def of_components(script: Sequence[Scan], n: int) -> list[Scan]:
    kept = [(tuple(c for c in scan[0] if c < n), *scan[1:]) for scan in script]
    return [scan for scan in kept if scan[0]]  # type: ignore[misc]


ILL: dict[str, list[Scan]] = {
    "coefficients that libjpeg guesses": [*WHOLE[:2], ((1,), 1, 63, 0, 0), ((2,), 2, 63, 0, 0)],
    "bits that never come": [*WHOLE[:3], ((2,), 1, 63, 0, 1)],
    "no DC": [((0, 1), 0, 0, 0, 0), *WHOLE[1:3]],
    "AC before DC": [((0,), 1, 63, 0, 0), ((0, 1, 2), 0, 0, 0, 0), *WHOLE[2:]],
    "twice": [*WHOLE, ((0,), 1, 63, 0, 0)],
    "DC twice": [*WHOLE, ((0,), 0, 0, 0, 0)],
    "a refinement of nothing": [((0, 1, 2), 0, 0, 0, 0), ((0,), 1, 63, 1, 0), *WHOLE[2:]],
    "a bit left out": [
        ((0, 1, 2), 0, 0, 0, 0),
        ((0,), 1, 63, 0, 3),
        ((0,), 1, 63, 2, 1),
        ((0,), 1, 63, 1, 0),
        *WHOLE[2:],
    ],
}


def damaged(files: list[bytes], count: int, seed: int) -> list[bytes]:
    """Return files with flipped bits, usually only in their scans, so that no header reveals the damage."""
    rng = np.random.default_rng(seed)
    result = []
    for i in range(count):
        data = bytearray(files[i % len(files)])
        starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
        at = int(rng.choice([*starts, 0][: len(starts) or 1])) + 12
        for _ in range(int(rng.integers(1, 3))):
            data[min(at + int(rng.integers(0, 400)), len(data) - 3)] ^= 1 << int(rng.integers(0, 8))
        result.append(bytes(data))
    return result
