"""PNG by our decoder: every colour type, depth, filter and interlacing against the pixels that were written; verdicts
against Pillow's."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import libdeflate, native_loops, pillow
from dali_run.ops.codecs.decoders import Image as ImageDecoder
from dali_run.ops.codecs.decoders import ImageCrop
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIDataType, DALIImageType
from tests.kit.files.pngs import KINDS, chunk, encoded, picture

pytestmark = pytest.mark.skipif(not png.available(), reason="no libdeflate here")


def stored(data: bytes) -> Any:
    return png.stored(memoryview(data), probe(memoryview(data)))


@pytest.mark.parametrize(("bits", "kind"), KINDS)
@pytest.mark.parametrize("interlaced", [False, True])
def test_every_kind(bits: int, kind: int, interlaced: bool) -> None:
    for h, w in [(1, 1), (2, 3), (4, 5), (7, 8), (9, 33), (70, 41)]:
        values, before, wanted = picture(bits, kind, h, w)
        for pieces in (1, 3):
            got = stored(encoded(values, bits, kind, interlaced=interlaced, before=before, pieces=pieces))
            assert got is not None
            assert got.dtype == (np.uint16 if bits == 16 else np.uint8)
            np.testing.assert_array_equal(got, wanted, f"{h} x {w}")


@pytest.mark.parametrize("filters", [(0,), (1,), (2,), (3,), (4,), (4, 4, 4, 2), (1, 3)])
@pytest.mark.parametrize(("bits", "kind"), [(8, 0), (8, 2), (8, 4), (8, 6), (16, 2), (16, 6), (1, 0)])
def test_every_filter(filters: Sequence[int], bits: int, kind: int) -> None:
    values, before, wanted = picture(bits, kind, 21, 50, 3)
    np.testing.assert_array_equal(stored(encoded(values, bits, kind, filters=filters, before=before)), wanted)


def run(operator: Any, files: Sequence[bytes]) -> tuple[Batch, list[Any], dict[str, int]]:
    taken: dict[str, int] = {}

    def told(decoder: str, images: int, *_: Any) -> None:
        taken[decoder] = taken.get(decoder, 0) + images

    samples = Samples.numbered(len(files))
    ctx = Context(operator, "cpu", samples, services=KernelServices(decoders=told))
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", samples)
    return operator.cpu(ctx, batch), ctx.rejects, taken


@pytest.mark.parametrize(
    "output_type", [DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY, DALIImageType.ANY_DATA]
)
@pytest.mark.parametrize("dtype", [DALIDataType.UINT8, DALIDataType.UINT16, DALIDataType.FLOAT])
@pytest.mark.parametrize("windowed", [False, True])
def test_as_by_pillow(output_type: DALIImageType, dtype: DALIDataType, windowed: bool, monkeypatch: Any) -> None:
    """Whoever decodes: the same pixels, whole and windows, of all kinds that Pillow keeps in full."""
    files = []
    for bits, kind in KINDS:
        if bits < 16 or kind == 0:
            values, before, _ = picture(bits, kind, 24, 31, bits + kind)
            files.append(encoded(values, bits, kind, before=before, interlaced=bits == 4))
    files.append(files[3][:-40])
    given = {"output_type": output_type, "dtype": dtype}
    operator = ImageCrop(crop=(9, 12), crop_pos_x=0.3, crop_pos_y=0.8, **given) if windowed else ImageDecoder(**given)
    ours, rejects, taken = run(operator, files)
    assert [r.slot for r in rejects] == [len(files) - 1]
    ours_alone = output_type is not DALIImageType.GRAY and dtype is DALIDataType.UINT8
    assert taken["png"] >= (len(files) - 2 if ours_alone else 0) if ours_alone else True
    monkeypatch.setattr(png, "available", lambda: False)
    theirs, their_rejects, taken = run(operator, files)
    assert "png" not in taken
    assert [(r.slot, r.code, r.message) for r in rejects] == [(r.slot, r.code, r.message) for r in their_rejects]
    for i in range(len(files) - 1):
        np.testing.assert_array_equal(ours.sample(i), theirs.sample(i), str(i))


def verdict(data: bytes) -> Any:
    try:
        header = probe(memoryview(data))
        return pillow.decode(memoryview(data), header, False, 10**7)
    except SampleError as e:
        return e


RGB = picture(8, 2, 20, 30)[0]
PACKED = zlib.compress(b"t")
TEXT = chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(2 << 20)))
ODD = {
    "CRC of IDAT": encoded(RGB, 8, 2)[:-13] + b"x" + encoded(RGB, 8, 2)[-12:],
    "no IEND": encoded(RGB, 8, 2, end=b""),
    "behind IEND": encoded(RGB, 8, 2) + b"x",
    "too few rows": encoded(RGB, 8, 2, cut=91),
    "a byte too few": encoded(RGB, 8, 2, cut=1),
    "too many rows": encoded(RGB, 8, 2, more=bytes(500)),
    "animation": encoded(RGB, 8, 2, before=chunk(b"acTL", struct.pack(">II", 2, 0))),
    "critical": encoded(RGB, 8, 2, before=chunk(b"ABCD", b"")),
    "palette of RGB": encoded(RGB, 8, 2, before=chunk(b"PLTE", bytes(9))),
    "no palette": encoded(picture(8, 3, 9, 9)[0], 8, 3),
    "short palette": encoded(picture(8, 3, 9, 9)[0], 8, 3, before=chunk(b"PLTE", bytes(range(30)))),
    "odd palette": encoded(picture(8, 3, 9, 9)[0], 8, 3, before=chunk(b"PLTE", bytes(767))),
    "short tRNS": encoded(RGB, 8, 2, before=chunk(b"tRNS", b"12")),
    "short gAMA": encoded(RGB, 8, 2, before=chunk(b"gAMA", b"12")),
    "short cHRM after": encoded(RGB, 8, 2, after=chunk(b"cHRM", b"12")),
    "bomb of text": encoded(RGB, 8, 2, before=TEXT),
    "bomb of text after": encoded(RGB, 8, 2, after=TEXT),
    "text": encoded(RGB, 8, 2, before=chunk(b"tEXt", b"a\0b"), after=chunk(b"iTXt", b"k\0\1\0\0\0" + PACKED)),
    "broken text": encoded(RGB, 8, 2, before=chunk(b"zTXt", b"k\0\0abc")),
    "profile": encoded(RGB, 8, 2, before=chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(3000)))),
    "profile of method 1": encoded(RGB, 8, 2, before=chunk(b"iCCP", b"name\0\1" + zlib.compress(bytes(3000)))),
    "IHDR of 12 bytes": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBB", 3, 3, 8, 2, 0, 0))
    + chunk(b"IEND", b""),
    "interlace 2": encoded(RGB, 8, 2).replace(b"\2\0\0\0", b"\2\0\0\2", 1),
    "16 x 1 bit": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 1, 1, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b""),
    "bomb": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1 << 30, 1 << 30, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b""),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_files(name: str) -> None:
    """Pillow takes every file that the decoder takes, with the same pixels."""
    data = ODD[name]
    header = probe(memoryview(data))
    if header.width * header.height > 10**7:
        assert png._decoder.DONE not in _status(data, header)
        return
    _agrees(data, header)


def _status(data: bytes, header: Any) -> list[int]:
    """The decoder's, with a window of nothing: the output needs no memory."""
    nothing, one = np.zeros((1, 4), np.int64), np.zeros(1, np.int64)
    out = np.zeros(1, np.uint8)
    wanted = nothing, one + 3, False, 1, out, one, one
    found = native_loops._run(png._decoder.decode_images, np.frombuffer(data, np.uint8), one, one + len(data), *wanted)
    return [int(s) for s in found]


def _agrees(data: bytes, header: Any) -> bool:
    got = png.stored(memoryview(data), header)
    if got is None:
        return False
    wanted = verdict(data)
    assert not isinstance(wanted, SampleError), wanted
    if header.bits < 16 or header.channels == 1:
        np.testing.assert_array_equal(got, wanted)
    return True


def test_mutations() -> None:
    """Never more lenient than Pillow: single bytes changed, cut out and put in, all over small files."""
    rng = np.random.default_rng(5)
    files = [
        encoded(RGB[:6, :7], 8, 2, pieces=2, after=chunk(b"tEXt", b"a\0b")),
        encoded(picture(8, 3, 6, 7)[0], 8, 3, before=picture(8, 3, 6, 7)[1], interlaced=True),
        encoded(picture(2, 0, 5, 9)[0], 2, 0, before=chunk(b"tRNS", b"\0\1")),
        encoded(picture(16, 6, 5, 4)[0], 16, 6),
    ]
    taken = 0
    for data in files:
        for _ in range(1500):
            at = int(rng.integers(8, len(data)))
            way = int(rng.integers(0, 4))
            byte = bytes([int(rng.integers(0, 256))])
            if way == 0:
                other = data[:at] + byte + data[at + 1 :]
            elif way == 1:
                other = data[:at] + data[at + int(rng.integers(1, 5)) :]
            elif way == 2:
                other = data[:at] + byte + data[at:]
            else:  # a chunk's CRC put right again, so that what is behind it is seen
                other = _mended(data[:at] + byte + data[at + 1 :])
            try:
                header = probe(memoryview(other))
            except SampleError:
                continue
            if header.width * header.height <= 10**6:
                taken += _agrees(other, header)
    assert taken > 50, "nearly all mutations were refused: the test says little"


def _mended(data: bytes) -> bytes:
    out, at = data[:8], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if at + 12 + length > len(data):
            break
        out += chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length])
        at += 12 + length
    return out + data[at:]


def test_files_of_others(shared_data: Path) -> None:
    for path in sorted((shared_data / "corpus" / "png").iterdir()):
        data = path.read_bytes()
        try:
            header = probe(memoryview(data))
        except SampleError:
            continue
        if header.width * header.height <= 10**8:
            _agrees(data, header)


def test_neighbours_are_left_alone() -> None:
    """Windows of pictures beside each other: every byte of the output belongs to one."""
    operator = ImageCrop(crop=(3, 5), crop_pos_x=1.0, crop_pos_y=1.0)
    values = [picture(8, 6, 11, 12, k)[0] for k in range(9)]
    out, rejects, taken = run(operator, [encoded(v, 8, 6, interlaced=k % 2 == 1) for k, v in enumerate(values)])
    assert not rejects
    assert taken == {"png": 9}
    for k, v in enumerate(values):
        np.testing.assert_array_equal(out.sample(k), v[8:, 7:, :3])


def test_without_libdeflate(monkeypatch: Any) -> None:
    """Pillow decodes, and 16 bits of colour need imagecodecs."""
    monkeypatch.setattr(libdeflate, "_places", list)
    libdeflate.functions.cache_clear()
    try:
        out, rejects, taken = run(ImageDecoder(), [encoded(RGB, 8, 2)])
        assert not rejects
        assert "png" not in taken
        np.testing.assert_array_equal(out.sample(0), RGB)
    finally:
        libdeflate.functions.cache_clear()


def test_pillow_writes() -> None:
    """Files as a library writes them."""
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "I;16"):
        buffer = io.BytesIO()
        rng = np.random.default_rng(1)
        base = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))
        image = (
            Image.fromarray(rng.integers(0, 65536, (40, 50), dtype=np.uint16)) if mode == "I;16" else base.convert(mode)
        )
        image.save(buffer, "PNG")
        assert _agrees(buffer.getvalue(), probe(memoryview(buffer.getvalue()))), mode
