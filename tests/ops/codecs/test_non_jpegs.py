"""Headers of a batch's images that are no JPEGs, read in one call: what the probe of one file says, or left to it."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import headers, probe_cpu
from dali_run.ops.codecs.format import COLUMNS, FORMAT
from dali_run.ops.codecs.formats import BY_NAME, probe
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.tiff import decoder as tiff
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIImageType
from tests.kit.files import plain

_EXIF = Image.Exif()
_EXIF[0x0112] = 6
KINDS = {
    "png": ("PNG", "RGB", {}),
    "png gray": ("PNG", "L", {}),
    "png palette": ("PNG", "P", {}),
    "png alpha": ("PNG", "LA", {}),
    "png 16 bits": ("PNG", "I;16", {}),
    "png turned": ("PNG", "RGB", {"exif": _EXIF}),
    "tiff": ("TIFF", "RGB", {}),
    "tiff lzw": ("TIFF", "RGBA", {"compression": "tiff_lzw"}),
    "tiff 16 bits": ("TIFF", "I;16", {"compression": "tiff_adobe_deflate"}),
    "tiff turned": ("TIFF", "L", {"tiffinfo": {274: 6}}),
    "tiff palette": ("TIFF", "P", {}),
}
NEVER = {"png turned", "tiff palette"}
"""Those that the probe alone reads."""


def encoded(kind: str, h: int, w: int, seed: int) -> bytes:
    """A file of noise."""
    if kind in plain.KINDS:
        return plain.encoded(kind, h, w, seed)
    name, mode, options = KINDS[kind]
    picture, out = Image.new(mode, (w, h), seed % 200 if mode in ("L", "P", "I;16") else None), io.BytesIO()
    picture.save(out, name, **options)
    return out.getvalue()


def changed(data: bytes, k: int, at: int, value: int) -> bytes:
    """A byte of it replaced, taken out or put in, or all after it cut off."""
    return [data[:at] + bytes([value]) + data[at + 1 :], data[:at] + data[at + 1 :], data[:at],
            data[:at] + bytes([value]) + data[at:]][k % 4]  # fmt: skip


def batch_of(files: list[bytes]) -> tuple[Batch, np.ndarray]:
    """A batch, with other bytes between the files, and their places."""
    spaced = [part for f in files for part in (f, b"P6 1 1 255 abc", b"BM" + bytes(80), b"\x89PNG" + bytes(60))]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in spaced], "", Samples.numbered(len(spaced)))
    return batch, np.arange(0, len(spaced), 4)


@pytest.mark.parametrize("kind", [*plain.KINDS, *KINDS])
def test_headers(kind: str) -> None:
    """Whole files and damaged ones."""
    rng = np.random.default_rng(len(kind))
    files = [encoded(kind, 40, 31, 1), encoded(kind, 3, 200, 2)]
    for k in range(1200):
        data = encoded(kind, 5 + k % 3, 6 + k % 7, k)
        at = int(rng.integers(0, 16 if kind[0] == "P" else len(data) if "tiff" in kind else min(len(data), 60)))
        value = int(rng.choice([0, 1, 9, 10, 32, 35, 48, 50, 53, 127, 128, 255, int(rng.integers(0, 256))]))
        files.append(changed(data, k, at, value))
    batch, which = batch_of(files)
    rows = np.empty((len(which), COLUMNS), np.int64)
    sizes = batch.shapes[which, 0].astype(np.int64)
    probe_cpu.headers(batch.data, batch.offsets[which], sizes, rows)
    taken = rows[:, FORMAT] != 0
    if kind in NEVER:
        assert not taken[:2].any()
    else:
        assert taken[:2].all()
        assert 100 < taken.sum() < 1199
    for data, row in zip(files, rows, strict=True):
        if row[FORMAT]:
            assert headers.header_of(row) == probe(memoryview(data))


def test_all_of_a_batch() -> None:
    """By either way the same headers, or the same errors; and those of a part of the batch."""
    files = [encoded(kind, 9, 14, 1) for kind in [*plain.KINDS, *KINDS]]
    for mode, name in (("RGB", "WEBP"), ("RGB", "GIF"), ("1", "PPM")):
        out = io.BytesIO()
        Image.new(mode, (20, 30)).save(out, name)
        files.append(out.getvalue())
    files += [b"", b"text", b"\x89PNG\r\n\x1a\n" + bytes(60), files[0][:30]]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    known = headers.non_jpegs_of(batch)
    assert headers.non_jpegs_of(batch) is known
    rows = dict(zip(known.indices.tolist(), known.rows, strict=True))
    assert sorted([*rows, *known.errors]) == list(range(len(files)))
    assert len(known.errors) >= 3
    for i, data in enumerate(files):
        if i in rows:
            assert headers.header_of(rows[i]) == probe(memoryview(data))
        else:
            with pytest.raises(SampleError, match=f"^{re.escape(str(known.errors[i]))}$"):
                probe(memoryview(data))
    which = np.array([7, 2, len(files) - 1, 11])
    some = known.take(which, len(files))
    assert some.indices.tolist() == [0, 1, 3]
    assert some.rows.tolist() == [rows[i].tolist() for i in (7, 2, 11)]
    assert some.errors == {2: known.errors[len(files) - 1]}


def test_the_largest_headers_are_reckoned_without_overflow() -> None:
    """A file that claims 2^31 pixels a side holds too few bytes for them."""
    rows = np.array([[BY_NAME["png"].code, 2**31 - 1, 2**31 - 1, 4, 16, 1]], np.int64)
    assert not png.writes_directly(rows, np.array([2**31 - 1]), DALIImageType.RGB)[0]
    rows[0, FORMAT] = BY_NAME["tiff"].code
    assert tiff.writes_directly(rows, DALIImageType.RGB)[0]
