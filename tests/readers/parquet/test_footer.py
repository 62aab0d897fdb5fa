"""Footers of Parquet files whose statistics of sizes are damaged: pyarrow would end the process."""

from __future__ import annotations

import datetime
import decimal
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError
from dali_run.readers.parquet.blocks import wrong_sizes
from dali_run.readers.parquet.footer_cpu import COLUMNS, size_statistics
from dali_run.readers.parquet.reader import Parquet

from ...fuzz.targets import table

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
pq = pytest.importorskip("pyarrow.parquet")


def footer_of(data: bytes) -> tuple[int, int]:
    """Where the footer begins and ends."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8


def wrong(data: bytes) -> str:
    content = bytearray(data)
    return wrong_sizes(memoryview(content), pq.read_metadata(pa.BufferReader(content)))


def many_types() -> bytes:
    columns = {
        "map": pa.array([[("a", 1)], [], None] * 5, pa.map_(pa.string(), pa.int32())),
        "deep": pa.array([[[1, 2], []], None, [[3]]] * 5),
        "struct": [{"a": 1, "b": {"c": "x"}}, {"a": 2, "b": None}, {"a": None, "b": {"c": "y"}}] * 5,
        "decimal": [decimal.Decimal("1.25")] * 15,
        "date": [datetime.date(2026, 11, 21)] * 15,
        "flag": [True, None, False] * 5,
        "fixed": pa.array([b"abcd"] * 15, pa.binary(4)),
        **{f"column {k}": range(15) for k in range(20)},
    }
    out = io.BytesIO()
    made = pa.table(columns).replace_schema_metadata({"huggingface": "x" * 300})
    pq.write_table(made, out, row_group_size=1)
    return out.getvalue()


@pytest.mark.parametrize(
    "how", [{}, {"write_statistics": False}, {"version": "1.0"}, {"write_page_index": True, "compression": "none"}]
)
def test_sound_footers(how: dict[str, Any]) -> None:
    assert wrong(table(**how)) == ""


def test_all_columns_of_many_types_are_found() -> None:
    data = many_types()
    meta = pq.read_metadata(pa.BufferReader(data))
    rows = np.ones((meta.num_row_groups * meta.num_columns + 5, COLUMNS), np.int64)
    begin, end = footer_of(data)
    assert size_statistics(np.frombuffer(bytearray(data[begin:end]), np.uint8), rows) == 15 * meta.num_columns
    assert wrong(data) == ""


def test_damage_is_named_and_never_asked_for(tmp_path: Path) -> None:
    """Every byte of a footer, changed by one: what pyarrow would abort for is refused in words."""
    data, one_line = table(), Counter[str]()
    begin, end = footer_of(data)
    rows = np.zeros((5 * 3, COLUMNS), np.int64)
    for at in range(begin, end):
        changed = bytearray(data)
        changed[at] ^= 1
        size_statistics(np.frombuffer(changed[begin:end], np.uint8), rows)  # ends, whatever it reads
        try:
            found = wrong(bytes(changed))
        except (OSError, ValueError, pa.ArrowException):  # pyarrow says so itself
            continue
        one_line[found] += 1
        if "histogram" in found and one_line[found] == 1:
            path = tmp_path / "damaged.parquet"
            path.write_bytes(changed)
            with pytest.raises(JobError, match="its footer is damaged: a histogram of levels has a wrong length"):
                Parquet(path=str(path), columns=("label",)).open()
    writes_histograms = int(pa.__version__.split(".")[0]) > 18
    assert one_line["a histogram of levels has a wrong length"] > 5 or not writes_histograms
