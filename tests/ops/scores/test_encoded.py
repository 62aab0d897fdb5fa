"""Scores of bytes: against Pillow's encoder, Python's strings and the xxhash library."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from tests.kit.guarded import Guarded
from tests.kit.operators import apply, batch_of, operator


def of_bytes(name: str, values: list[bytes], **arguments: Any) -> list[int]:
    made, rejects = apply(operator(name, **arguments), batch_of([np.frombuffer(v, np.uint8) for v in values]))
    assert not rejects
    assert made.ndim == 0
    return [int(v) for v in made.data]


def jpeg(mode: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((16, 16)).convert(mode).save(file, "jpeg", **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_quality_of_libjpegs_files_is_exact(mode: str) -> None:
    options = [{}, {"progressive": True}, {"subsampling": 0, "comment": b"\xff\xdb\0\x43" * 9}]
    files = [jpeg(mode, quality=q, **options[q % 3]) for q in range(1, 101)]
    assert of_bytes("jpeg_quality", files) == list(range(1, 101))


def test_quality_of_other_tables_is_imagemagicks() -> None:
    """By JPEGSetImageQuality of coders/jpeg.c, worked out by hand. Tables that are all 16: four entries make 64, the
    sum is 2,048; the IJG's make 64 and 2,405 at quality 87, the first at which one of them is not larger. Tables that
    are all 120: 480 and 15,360; the IJG's make 474 at quality 26, and up to 50 both must be at most the IJG's."""
    assert of_bytes("jpeg_quality", [jpeg("RGB", qtables=[[16] * 64, [16] * 64])]) == [87]
    assert of_bytes("jpeg_quality", [jpeg("RGB", qtables=[[120] * 64, [120] * 64])]) == [0]


def test_bytes_without_tables_have_no_quality() -> None:
    file = jpeg("RGB", quality=80)
    at = file.index(b"\xff\xdb")
    broken = [b"", b"\xff\xd8", b"GIF89a", file[:at], file[: at + 40], file[:at] + b"\xff\xdb", b"\xff\xd8\xff" * 9]
    wide = bytearray(file[:at] + b"\xff\xdb\0\x83\x10" + (b"\0\x01" * 64) + b"\xff\xd9")
    assert of_bytes("jpeg_quality", [*broken, bytes(wide)]) == [0] * len(broken) + [100]


TEXTS = [
    "", " ", "a", " two  words ", "one\ntwo\tthree\r\n", "é à\u3000ü\u2003x", "\u1680", "日本 語",
    "\x1cq\x1d", "😀 😀a", "a\u00a0b", "a\u200bb", "\u2028x\u2029", "Ā\u0085b",
]  # fmt: skip


def test_lengths_of_texts_are_pythons() -> None:
    """All characters of white space of Python are white space, and no others up to U+FFFF."""
    texts = [*TEXTS, *(f"a{c}b" for c in map(chr, range(0x10000)) if not 0xD800 <= ord(c) < 0xE000)]
    encoded = [t.encode() for t in texts]
    assert of_bytes("text_length", encoded) == [len(t.split()) for t in texts]
    assert of_bytes("text_length", encoded, unit="characters") == [len(t) for t in texts]
    assert of_bytes("text_length", encoded, unit="bytes") == [len(b) for b in encoded]


def test_bytes_that_are_no_utf8_are_counted() -> None:
    latin = ["caf\u00e9 cr\u00e8me".encode("latin-1"), b"\x80", b"\xff\xff x", b"\xe3\x80"]
    assert of_bytes("text_length", latin) == [2, 1, 2, 1]
    assert of_bytes("text_length", latin, unit="characters") == [10, 1, 4, 1]


XXH64 = {
    0: "ef46db3751d8e999", 1: "e934a84adb052768", 3: "e5c7bb4533bc65dd", 4: "ffced8604453cc1e", 7: "14cc643f630c72d2",
    8: "884a173614b81b8d", 31: "c346d2b59b4d8ee1", 32: "cbf59c5116ff32b4", 33: "0c535d1acafb8ead",
    64: "f7c67301db6713f0", 100: "6ac1e58032166597", 255: "0f7d97507caad693",
}  # fmt: skip
"""By xxhash 4.1.0: xxh64 of the bytes 0, 1, 2 ... of each length."""


def test_hashes_are_those_of_xxhash() -> None:
    made = of_bytes("content_hash", [bytes(range(n)) for n in XXH64])
    assert [f"{h:016x}" for h in made] == list(XXH64.values())
    words, _ = apply(operator("content_hash"), batch_of([np.frombuffer(bytes(range(64)), "<f4").reshape(4, 4)]))
    assert f"{words.data[0]:016x}" == XXH64[64]


def test_nothing_is_read_outside_of_the_bytes() -> None:
    """Of files that end anywhere, and whose header has any byte: reading beyond them would end the process."""
    random, file, room = np.random.default_rng(4), jpeg("RGB", quality=75), Guarded(1 << 12)
    header = file.index(b"\xff\xda") + 4
    loops = [operator(name) for name in ("jpeg_quality", "text_length", "content_hash")]
    for turn in range(header + 300):
        data = bytearray(file[:turn] if turn < header else file[:header])
        for at in random.integers(2, header, 3) if turn >= header else ():
            data[at] = random.choice([0, 1, 0xDB, 0xFF, random.integers(256)])
        batch = Batch(room.put(bytes(data), at_end=True), np.zeros(1, np.int64), np.array([[len(data)]], np.int32), "",
                      Samples.numbered(1))  # fmt: skip
        for op in loops:
            _, rejects = apply(op, batch)
            assert not rejects
        assert 0 <= int(apply(loops[0], batch)[0].data[0]) <= 100


def test_what_is_refused() -> None:
    for name in ("jpeg_quality", "text_length"):
        with pytest.raises(SpecError, match=r"takes bytes, uint8\[\?\], got float"):
            operator(name).infer(Spec((None,), DALIDataType.FLOAT))
    with pytest.raises(ValueError, match="'lines' is not one of 'words'"):
        operator("text_length", unit="lines")
