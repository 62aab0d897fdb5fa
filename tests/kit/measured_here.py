"""Run benchmarks in the test's own process, because another process takes a hundred times as long to start as tests
measure. tests/cli/test_bench.py and tests/pipelines/bench check that bench measures in separate processes."""

from __future__ import annotations

from typing import Any

import pytest

from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.bench import run, tune
from dali_run.pipelines.bench.measure import Measurement, measure, measure_limits


def measure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the commands bench and tune measure in this process from now on."""

    def run_here(this: Measurement, what: str) -> dict[str, Any]:
        try:
            return measure(this) if what == "measure" else measure_limits(this)
        except DaliRunError as e:
            return {"error": str(e)}

    monkeypatch.setattr(run, "run_in_process", run_here)
    monkeypatch.setattr(tune, "run_in_process", run_here)
