"""Headers of a batch: walked once, whoever asks, and again where the bytes are others."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.headers import parsed_headers
from dali_run.ops.codecs.jpeg import header as jpeg_header


def encoded(*extents: tuple[int, int]) -> Batch:
    """Gray JPEGs of some widths and heights."""
    files = []
    for extent in extents:
        file = io.BytesIO()
        Image.new("L", extent).save(file, "JPEG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    return Batch.from_list(files, "", Samples.numbered(len(files)))


def rows_of(batch: Batch) -> np.ndarray:
    return parsed_headers(batch).jpeg


def test_a_batch_is_walked_once() -> None:
    batch = encoded((8, 9), (20, 3))
    rows = rows_of(batch)
    assert rows["width"].tolist() == [8, 20]
    assert rows_of(batch) is rows
    assert rows_of(batch.replace(samples=Samples.numbered(2, 5))) is rows


def test_other_bytes_at_the_same_places_are_walked_again() -> None:
    batch, others = encoded((8, 9), (20, 3)), encoded((8, 9), (21, 3))
    assert batch.offsets.tolist() == others.offsets.tolist()
    rows_of(batch)
    rows = rows_of(batch.replace(data=others.data))
    assert rows["width"].tolist() == [8, 21]
    assert rows_of(batch)["width"].tolist() == [8, 20]


def test_parts_of_a_batch_have_rows_of_their_own() -> None:
    batch = encoded((8, 9), (20, 3), (5, 5))
    rows_of(batch)
    assert rows_of(batch.take(slice(1, 3)))["width"].tolist() == [20, 5]


@pytest.mark.parametrize("length", range(10))
@pytest.mark.parametrize("marker", [0xFE, 0xE0, 0xE1, 0xEE])
def test_lengths_of_comments_that_are_wrong(length: int, marker: int) -> None:
    """Wherever libjpeg-turbo gets at the picture without a warning, so do we, and nowhere else."""
    file = io.BytesIO()
    Image.new("RGB", (9, 7), "teal").save(file, "JPEG")
    good = file.getvalue()
    for text in (b"", b"hello"):
        data = good[:2] + bytes([0xFF, marker, 0, length]) + text + good[2:]
        row = jpeg_header.read_headers(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]))[0]
        try:
            simplejpeg.decode_jpeg(data)
        except ValueError:  # a warning is an error to simplejpeg
            assert row["status"] != jpeg_header.OK
            assert row["junk"] or row["jfif"] != 1
        else:
            assert row["status"] == jpeg_header.OK
            assert (row["width"], row["height"]) == (9, 7)
