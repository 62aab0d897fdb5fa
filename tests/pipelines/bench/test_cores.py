"""Cores that may be used, under affinity and quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dali_run.pipelines import cores


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 16), ("250000 100000", 2), ("10000 100000", 1), ("", 16), (None, 16)]
)
def test_the_control_group_is_obeyed(
    quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert cores.usable_cores() == expected
