"""Cores that may be used, under affinity and quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dali_run.pipelines import cores

MAX = "max 100000"


@pytest.mark.parametrize(
    ("listed", "files", "expected"),
    [
        ("0::/", {"cpu.max": MAX}, 16),
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "10000 100000"}, 1),
        ("0::/", {"cpu.max": ""}, 16),
        ("0::/", {}, 16),
        ("", {"cpu.max": "200000 100000"}, 16),
        ("0::/a/b", {"a/b/cpu.max": MAX, "a/cpu.max": "300000 100000", "cpu.max": "900000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": MAX}, 2),
        ("0::/../../a", {"cpu.max": "500000 100000"}, 5),
        ("5:cpuset:/c\n4:cpu,cpuacct:/c", {"cpu/c/cpu.cfs_quota_us": "400000", "cpu/c/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpu,cpuacct:/c/d", {"cpu/c/cpu.cfs_quota_us": "150000", "cpu/c/cpu.cfs_period_us": "50000",
                                "cpu/c/d/cpu.cfs_quota_us": "-1", "cpu/c/d/cpu.cfs_period_us": "50000"}, 3),
        ("4:cpuset:/c", {"cpu/c/cpu.cfs_quota_us": "100000", "cpu/c/cpu.cfs_period_us": "100000"}, 16),
        ("4:cpu:/c\n0::/u", {"u/cpu.max": MAX, "cpu/c/cpu.cfs_quota_us": "9", "cpu/c/cpu.cfs_period_us": "0"}, 16),
        ("no such line", {"cpu.max": "200000 100000"}, 16),
    ],
)  # fmt: skip
def test_quotas_of_control_groups_are_obeyed(
    listed: str, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1, version 2 and both; of the group and of all above it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    (tmp_path / "proc").write_text(listed)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    places = {"/proc/self/cgroup": tmp_path / "proc", "/sys/fs/cgroup": tmp_path / "groups"}
    monkeypatch.setattr(cores, "Path", lambda p: places.get(p, Path(p)))
    assert cores.usable_cores() == expected
