"""The isolation part of `make torture`, small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import torture_isolation as torture


def passed(rows: Iterator[torture.Row]) -> int:
    tried = 0
    for row in rows:
        assert not row.bad, f"{row.what}: {row.bad}"
        tried += row.tried
    return tried


def test_workers_that_die_cost_nothing(tmp_path: Path) -> None:
    assert passed(torture.killed_workers(tmp_path, 3)) == 3


def test_files_that_crash_or_hang_their_decoder_are_named_and_cost_themselves(tmp_path: Path) -> None:
    assert passed(torture.culprits(tmp_path, (8,))) == 32


def test_one_outcome_in_every_mode_for_any_batch(tmp_path: Path) -> None:
    if passed(torture.corpus(tmp_path, (1, 64))) == 0:
        pytest.skip("needs the folder of real inputs beside the checkout (../shared/data)")


def test_databases_that_are_damaged_before_and_while_they_are_read(tmp_path: Path) -> None:
    assert passed(torture.damaged_databases(tmp_path, 60)) == 60
