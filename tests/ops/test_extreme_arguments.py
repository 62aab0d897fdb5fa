"""Numbers that no one gives on purpose, to every operator: refused, or a result. See tests/kit/extremes.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dali_run.ops.base import operators
from dali_run.pipelines.plugins import load_operators

ROOT = Path(__file__).parents[2]
GROUPS = 6

load_operators()


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_operator(group: int) -> None:
    """In a process of its own, which may not take much memory; a crash or a hang leaves the call that did it last."""
    ours = sorted(name for name, cls in operators().items() if cls.__module__.startswith("dali_run."))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.extremes", "--few", *ours[group::GROUPS]],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [line for line in lines if line[0] == "FAULT"]
    assert not faults, "\n".join(map(str, faults))
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    assert len(lines) > 100
