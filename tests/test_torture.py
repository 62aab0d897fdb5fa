"""Parts of `make torture`, small: so that it keeps working, and these hold every day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import torture


def passed(rows: Iterator[torture.Row]) -> int:
    tried = 0
    for row in rows:
        assert not row.bad, f"{row.what}: {row.bad[0]}"
        tried += row.tried
    return tried


def test_the_same_bytes_for_any_layout_of_the_work(tmp_path: Path) -> None:
    assert passed(torture.layouts(tmp_path, quick=True)) == len(torture.grid()[::17]) == 13


def test_at_least_200_layouts_in_the_long_version() -> None:
    assert len(set(torture.grid())) >= 200


def test_damaged_journals(tmp_path: Path) -> None:
    assert passed(torture.journals(tmp_path, 300)) == 300


def test_a_really_full_disk(tmp_path: Path) -> None:
    if passed(torture.full_disk(tmp_path, 1, ("tfrecord",))) == 0:
        pytest.skip("needs unshare with user namespaces")
