"""Numbers of variable length, against their definition: seven bits a byte, the lowest first."""

from __future__ import annotations

import pytest

from dali_run.ops.errors import SampleError
from dali_run.pipelines.tools.datasets import example_fields
from dali_run.readers.parquet.pages import walk_pages
from dali_run.readers.records.varint import varint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32 - 1, 2**63, 2**64 - 1])
def test_numbers_and_where_they_end(value: int) -> None:
    groups = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    written = bytes([g | 128 for g in groups[:-1]] + groups[-1:])
    for data in (b"\xff" + written + b"\x05", memoryview(b"\xff" + written + b"\x05")):
        assert varint(data, 1) == (value, 1 + len(written))


def test_damage_is_told_alike_by_all_who_read_numbers() -> None:
    for data, why in (
        (b"", "ends after the data"),
        (b"\x80\x80", "ends after the data"),
        (b"\x80" * 11, "ten bytes"),
    ):
        with pytest.raises(ValueError, match=why):
            varint(data, 0)
    with pytest.raises(SampleError, match="no page begins at byte 0: a number ends after the data"):
        walk_pages(memoryview(b"\x15\x80"), 0, 2, 1)
    assert example_fields(b"\x0a\x80") == {}
