"""readers.fits against what astropy reads (tests/golden/astropy_fits.py), and on damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError, SampleError, SpecError
from dali_run.ops.types import DALIDataType
from dali_run.readers.fits import Fits, read_hdus, read_image

STORED = np.load(Path(__file__).parents[1] / "golden" / "fits.npz")
NAMES = sorted({key.split("/")[0] for key in STORED.files})
IMAGES = [key for key in STORED.files if not key.endswith("/file")]


def file_of(name: str) -> bytes:
    return STORED[f"{name}/file"].tobytes()


@pytest.mark.parametrize("key", [k for k in IMAGES if not k.startswith("floats")])
def test_pixels_of_astropy(key: str) -> None:
    name, number = key.split("/")
    data = memoryview(file_of(name))
    hdus = list(read_hdus(data))
    got, wanted = read_image(data, hdus[int(number) - 1]), STORED[key]
    assert got.dtype == wanted.dtype
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, wanted)


def test_compressed_floats_say_that_they_cannot_be_read() -> None:
    data = memoryview(file_of("floats"))
    with pytest.raises(SampleError, match="integers"):
        read_image(data, list(read_hdus(data))[1])


def test_texts_of_headers() -> None:
    (first, *_) = read_hdus(memoryview(file_of("several")))
    assert first.cards["OBSERVER"] == "O'Neill / a 'quoted' name"


def read(folder: Path, **how: Any) -> tuple[Any, Context]:
    reader = Fits(file_root=str(folder), **how)
    reader.check()
    source = reader.open()
    try:
        ctx = Context(reader, "cpu", Samples.numbered(len(source)), source=source)
        return reader.cpu(ctx), ctx
    finally:
        source.close()


def test_several_hdus_and_types(tmp_path: Path) -> None:
    (tmp_path / "a.fits").write_bytes(file_of("several"))
    (tmp_path / "b.fits").write_bytes(file_of("several"))
    (tmp_path / "c.txt").write_bytes(b"else")
    types = (DALIDataType.FLOAT, DALIDataType.INT16, DALIDataType.UINT8)
    out, ctx = read(tmp_path, hdu_indices=(3, 1, 2), dtypes=types)
    assert not ctx.rejects
    assert [b.dtype.name for b in out] == ["float32", "int16", "uint8"]
    assert [len(b) for b in out] == [2, 2, 2]
    np.testing.assert_array_equal(out[0].sample(1), STORED["several/3"])
    np.testing.assert_array_equal(out[2].sample(0), np.arange(6).reshape(2, 3))


def test_what_is_wrong_with_a_file_is_said_and_costs_that_file(tmp_path: Path) -> None:
    good = file_of("several")
    files = {"a": good, "b": b"no FITS file" * 400, "c": good[:5000], "d": file_of("float64"), "e": file_of("scaled")}
    for name, data in files.items():
        (tmp_path / f"{name}.fits").write_bytes(data)
    out, ctx = read(tmp_path)
    assert [(r.slot, r.code) for r in ctx.rejects] == [
        (1, "not_an_image"), (2, "truncated"), (3, "bad_shape"), (4, "bad_shape"),
    ]  # fmt: skip
    np.testing.assert_array_equal(out[0].sample(0), STORED["several/2"])
    _, ctx = read(tmp_path, hdu_indices=(3,))
    assert "there is no HDU 3" in ctx.rejects[-1].message


@pytest.mark.parametrize("name", ["int16", "RICE_1-int32-tiles", "GZIP_2-int16-rows", "scaled", "cube"])
def test_damaged_files_never_raise_anything_else(name: str) -> None:
    good = np.frombuffer(file_of(name), np.uint8)
    random = np.random.default_rng(1)
    for turn in range(150):
        bad = good.copy()
        for at in random.integers(0, len(bad), 1 + turn % 4):
            bad[at] = random.integers(0, 256)
        data = memoryview(bad[: len(bad) if turn % 3 else random.integers(0, len(bad))].tobytes())
        try:
            for hdu in read_hdus(data):
                read_image(data, hdu)
        except SampleError:
            pass


def test_arguments(tmp_path: Path) -> None:
    for how, message in (({}, "one of"), ({"files": ("a",), "file_list": "b"}, "exclude"),
                         ({"file_root": "x", "hdu_indices": ()}, "hdu_indices"),
                         ({"file_root": "x", "dtypes": (DALIDataType.FLOAT,) * 2}, "dtypes")):  # fmt: skip
        with pytest.raises(SpecError, match=message):
            Fits(**how).check()
    with pytest.raises(JobError, match="no files that match"):
        Fits(file_root=str(tmp_path)).open()


def changed(name: str, cards: dict[str, str]) -> memoryview:
    """A file with other values of ``cards`` wherever they stand, and with THEAP at the end of its last header."""
    data = bytearray(file_of(name))
    if "THEAP" in cards:
        end = data.rfind(b"END".ljust(80))
        data[end : end + 160] = b"THEAP   = ".ljust(80) + b"END".ljust(80)
    for at in range(0, len(data), 80):
        card = bytes(data[at : at + 8]).decode("latin-1").rstrip()
        if card in cards and data[at + 8 : at + 10] == b"= ":
            data[at + 10 : at + 80] = cards[card].rjust(20).ljust(70).encode()
    return memoryview(bytes(data))


HOSTILE = [
    ("cube", {"NAXIS": "999"}), ("cube", {"NAXIS1": "2147483648", "NAXIS2": "0"}), ("cube", {"NAXIS1": str(2**70)}),
    ("cube", {"GCOUNT": "0"}), ("cube", {"PCOUNT": "-1"}), ("cube", {"PCOUNT": "T"}),
    ("RICE_1-int16-tiles", {"ZNAXIS": "33"}), ("RICE_1-int16-tiles", {"ZNAXIS1": str(2**40), "ZNAXIS2": "0"}),
    ("RICE_1-int16-tiles", {"THEAP": "-100000"}), ("RICE_1-int16-tiles", {"THEAP": str(2**70)}),
    ("RICE_1-int16-tiles", {"NAXIS": "1"}), ("RICE_1-int16-tiles", {"GCOUNT": "0"}),
    ("RICE_1-int16-tiles", {"ZVAL1": str(2**40)}), ("RICE_1-int16-tiles", {"ZVAL1": str(2**70)}),
    ("RICE_1-int16-tiles", {"ZVAL2": "2.0"}), ("RICE_1-int16-tiles", {"ZVAL1": "T"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cards"), HOSTILE)
def test_headers_that_claim_what_is_not_there(name: str, cards: dict[str, str]) -> None:
    def images(data: memoryview) -> list[Any]:
        return [read_image(data, hdu) for hdu in list(read_hdus(data))[1:]]

    with pytest.raises(SampleError) as caught:
        images(changed(name, cards))
    assert len(str(caught.value)) < 300
